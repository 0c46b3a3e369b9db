"""The format of ``torch.distributed.checkpoint`` (DCP), written and read by torch's own planners and storage classes.

Only the order of calls is ours (that which ``StorageWriter`` and ``SavePlanner`` document): so what fails on one rank
fails on all with a reason, every file is summed while it is written, and a checkpoint loads without any collective.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,  # makes the dict from the checkpoint, as torch's own converters do with it
)
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    FileSystemBase,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import WriteResult

from elastic_torch.disk.collective import Collective
from elastic_torch.disk.manifest import METADATA, FileSum, Manifest
from elastic_torch.disk.retry import ONCE, Retry, opened
from elastic_torch.disk.storage import Storage, created


class _Files(FileSystemBase):
    """A storage as torch's classes want it. ``sums`` is what was written.

    Where a checkpoint is read, ``manifest`` is its. torch unpickles ``.metadata``: it is given the very bytes whose sum
    was compared with that, and no others.
    """

    def __init__(self, storage: Storage, retry: Retry = ONCE, manifest: Manifest | None = None) -> None:
        self._storage, self._retry, self._manifest = storage, retry, manifest
        self.sums: dict[str, FileSum] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if mode == "rb":
            with opened(self._storage, str(path), self._retry, checked=True) as file:
                yield file if self._manifest is None or not str(path).endswith(f"/{METADATA}") else self._checked(file)
            return
        with created(self._storage, str(path), self.sums) as stream:
            yield stream

    def _checked(self, file: IO[bytes]) -> io.BytesIO:
        assert self._manifest is not None
        data = file.read()
        if FileSum(len(data), hashlib.sha256(data).hexdigest()) != self._manifest.files.get(METADATA):
            raise OSError(f"{METADATA} is not what was verified a moment ago")
        return io.BytesIO(data)

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: Any) -> str:
        return str(path)

    def exists(self, path: Any) -> bool:
        return self._storage.size(str(path)) is not None

    def mkdir(self, path: Any) -> None:
        """Do nothing: the folder is there already."""

    def rename(self, path: Any, new_path: Any) -> None:
        raise NotImplementedError

    def rm_file(self, path: Any) -> None:
        raise NotImplementedError

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


_METADATA_NAMES = {
    "torch": "Size",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.distributed.checkpoint.metadata": "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex "
    "StorageMeta TensorProperties TensorStorageMetadata _MEM_FORMAT_ENCODING",
    "torch.serialization": "_get_layout",
}
"""The classes in the metadata of torch 2.13, by module, besides data types."""


class _MetadataUnpickler(pickle.Unpickler):
    """Finds only what torch's metadata consists of."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of torch's metadata, or one that a size, a data type or a place in a file is made of."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _METADATA_NAMES.get(module, "").split():
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no metadata of torch has")


class _Reader(FileSystemReader):
    """Torch's reader of a folder in a storage."""

    def __init__(self, storage: Storage, folder: str, retry: Retry, manifest: Manifest) -> None:
        super().__init__(folder)
        self.path = folder
        self.fs = _Files(storage, retry, manifest)  # type: ignore[assignment]  # torch puts its own other ones there

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata, read without running anything that is in it."""
        with self.fs.create_stream(f"{self.path}/{METADATA}", "rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{METADATA} holds a {type(metadata).__name__}")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _StorageWriter(FileSystemWriter):
    """Torch's writer of a rank's file, into a storage."""

    def __init__(self, storage: Storage, folder: str) -> None:
        super().__init__(folder, sync_files=False)  # closing a file syncs it
        self.path = folder
        self.files = _Files(storage)
        self.fs = self.files  # type: ignore[assignment]  # torch puts its own other ones there as well

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the metadata, which the first rank writes."""
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}
        metadata.storage_meta = self.storage_meta()


def write(
    collective: Collective, storage: Storage, folder: str, state: dict[str, Any]
) -> tuple[dict[str, FileSum], bytes]:
    """Write this rank's part of a state dict. Collective.

    Returns:
        The sums of this rank's files; and, on the first rank, the content of the file ``.metadata``, which no rank has
        written yet.

    Raises:
        PeerFailedError: It failed on some rank.
    """
    planner, writer = DefaultSavePlanner(), _StorageWriter(storage, folder)
    planner.set_up_planner(state, is_coordinator=collective.leads)
    writer.set_up_storage_writer(collective.leads)
    plans = collective.collect(lambda: writer.prepare_local_plan(planner.create_local_plan()))
    complete: list[Metadata] = []

    def arrange() -> list[SavePlan]:
        arranged, metadata = planner.create_global_plan(plans)
        complete.append(metadata)
        return writer.prepare_global_plan(arranged)

    plan = planner.finish_plan(collective.deal(arrange))
    results = collective.collect(lambda: list(writer.write_data(plan, planner).wait()))
    for metadata in complete:
        writer.finish(metadata, results)
    return writer.files.sums, pickle.dumps(complete[0]) if complete else b""


def write_metadata(storage: Storage, folder: str, content: bytes) -> FileSum:
    """Write the file that torch reads first."""
    sums: dict[str, FileSum] = {}
    with created(storage, f"{folder}/{METADATA}", sums) as stream:
        stream.write(content)
    return sums[METADATA]


class Loose(dict[str, Any]):
    """A part of a state dict, of which only what was saved is wanted, at any depth."""


def read(
    storage: Storage, folder: str, manifest: Manifest, into: dict[str, Any] | None = None, retry: Retry = ONCE
) -> dict[str, Any]:
    """Read a checkpoint: into a state dict, each rank its shards; or, without one, all of it as it was saved.

    In ``into`` tensors are filled in place, other values replaced; what has a ``load_state_dict`` at the top level is
    given it. Where None stands at the top level comes whatever was saved under that name, or nothing; of a
    :class:`Loose` one what was not saved is left out.
    """
    reader = _Reader(storage, folder, retry, manifest)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    if into is None:
        return _planned(reader, metadata, _EmptyStateDictLoadPlanner(), {})
    unknown = {key for key, value in into.items() if value is None}
    found = _planned(reader, metadata, _EmptyStateDictLoadPlanner(keys=unknown), {}) if unknown else {}
    for key in unknown:
        del into[key]
    saved = {path[:end] for path in (metadata.planner_data or {}).values() for end in range(1, len(path) + 1)}
    into.update({key: _saved(value, (key,), saved) for key, value in into.items() if isinstance(value, Loose)})
    given = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in into.items()}
    state = _planned(reader, metadata, DefaultLoadPlanner(), given)
    for key, value in into.items():
        if isinstance(value, Stateful):
            value.load_state_dict(state[key])
        else:
            into[key] = state[key]
    into.update(found)
    return into


def _saved(value: Any, path: tuple[Any, ...], saved: set[tuple[Any, ...]]) -> Any:
    """Return what of it was saved, going by the beginnings of all places that were."""
    if not isinstance(value, dict):
        return value
    return {key: _saved(item, (*path, key), saved) for key, item in value.items() if (*path, key) in saved}


def _planned(
    reader: FileSystemReader, metadata: Metadata, planner: DefaultLoadPlanner, state: dict[str, Any]
) -> dict[str, Any]:
    """Read into a state dict, in the order of calls that torch's own load has."""
    planner.set_up_planner(state, metadata, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return state
