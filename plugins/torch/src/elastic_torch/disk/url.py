"""Checkpoints at a URL, by fsspec: object stores, and whatever else it knows.

Nothing can be renamed atomically there, nor locked. So a checkpoint is written under its final name from the start,
with a random suffix, and counts once its manifest is there, which is written last: an object appears
whole or not at all. There is no ``latest``: the names say which one is the newest, and an object that many overwrite
could go back. Two savers of one step may both end up complete; readers take the one whose suffix sorts first.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import IO

from elastic_core.errors import UsageError
from elastic_torch.disk.manifest import NAME
from elastic_torch.disk.retry import as_os_error
from elastic_torch.disk.storage import Sink
from elastic_torch.version import parse


class UrlStorage:
    """The storage at one URL; its methods are those of ``LocalStorage``, whose docstrings say what they do."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise UsageError(
                f"Checkpoints at {url!r} need fsspec, which is not installed.", hint="pip install fsspec"
            ) from error
        try:
            self._fs, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{url!r} is no place for checkpoints: {error}") from error
        self._root = str(root).rstrip("/")
        self.root = url.rstrip("/")

    def create(self) -> None:  # noqa: D102  (as LocalStorage's; so are all below)
        as_os_error(lambda: self._fs.makedirs(self._root, exist_ok=True))

    def path(self, name: str) -> str:  # noqa: D102
        return f"{self.root}/{name}"

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def folders(self) -> list[str]:  # noqa: D102
        return [name for name in self.names("") if parse(name) is None or self._complete(name)]

    def unfinished(self) -> list[str]:  # noqa: D102
        return [name for name in self.names("") if parse(name) is not None and not self._complete(name)]

    def _complete(self, folder: str) -> bool:
        return self.size(f"{folder}/{NAME}") is not None

    def names(self, folder: str) -> list[str]:  # noqa: D102
        try:
            paths = as_os_error(lambda: self._fs.ls(self._at(folder), detail=False))
            return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int | None:  # noqa: D102
        try:
            return int(as_os_error(lambda: self._fs.size(self._at(path))))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, *, checked: bool = False) -> IO[bytes]:  # noqa: D102
        file: IO[bytes] = self._fs.open(self._at(path), "rb")
        return file

    def write(self, path: str) -> Sink:  # noqa: D102
        file = self._fs.open(self._at(path), "wb")

        def put(data: memoryview) -> int:
            file.write(data)
            return len(data)

        def finish(keep: bool) -> None:
            if keep:
                file.close()
            else:
                with contextlib.suppress(Exception):  # what is left there is listed in no manifest
                    file.discard()

        return Sink(put, finish)

    def put(self, path: str, data: bytes) -> bool:  # noqa: D102
        if self.size(path) is not None:
            return False
        with io.BufferedWriter(self.write(path)) as file:
            file.write(data)
        return True

    def staging(self, name: str, nonce: str) -> str:  # noqa: D102
        return f"{name}-{nonce}"

    def make(self, folder: str) -> None:  # noqa: D102
        self._fs.makedirs(self._at(folder), exist_ok=True)

    def adopt(self, source: str, target: str) -> None:  # noqa: D102
        self._fs.copy(self._at(source), self._at(target))

    def publish(self, staging: str, name: str) -> str:  # noqa: D102
        others = sorted(folder for folder in self.folders() if parse(folder) == parse(name))
        if others[:1] != [staging]:
            raise FileExistsError(f"{others[0] if others else name} is there already")
        return staging

    def remove(self, folder: str) -> None:  # noqa: D102
        # The manifest first: without it the rest is no checkpoint.
        for path in (f"{folder}/{NAME}", folder):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self._at(path), recursive=path == folder)

    def set_aside(self, folder: str) -> str | None:  # noqa: D102
        return None

    def pointed(self) -> str | None:  # noqa: D102
        return None

    def point(self, folder: str | None) -> None:
        """Do nothing: names of folders say which one is the newest."""

    @contextlib.contextmanager
    def guard(self) -> Iterator[bool]:  # noqa: D102
        yield False

    def hold(self, path: str) -> contextlib.ExitStack:  # noqa: D102
        return contextlib.ExitStack()

    def held(self, path: str) -> bool:  # noqa: D102
        return False
