"""The files of a checkpoint that come from another node: written beside, compared with their sums, published."""

from __future__ import annotations

import contextlib
import io
import secrets

from elastic_torch.disk import catalog
from elastic_torch.disk.assembly import Assembly, Holding
from elastic_torch.disk.manifest import NAME, encode
from elastic_torch.disk.storage import BLOCK, Sink, Storage
from elastic_torch.version import parse


class Receiver:
    """Takes in what a directory lacks. Errors wait for :meth:`finish`: the sender goes on for the others.

    Args:
        storage: The directory.
        assembly: What is to be there in the end.
        lacks: The files that will come.
        mine: What is there of it.
    """

    def __init__(self, storage: Storage, assembly: Assembly, lacks: frozenset[str], mine: Holding | None) -> None:
        self.lacks = lacks
        self._storage = storage
        self._manifest = assembly.manifest
        self._intact = frozenset() if mine is None else mine.intact
        self._staging = storage.staging(str(assembly.manifest.position), secrets.token_hex(4))
        self._error: Exception | None = None
        self._open: tuple[Sink, io.BufferedWriter] | None = None
        try:
            storage.make(self._staging)
            for name in {*self._manifest.files} - lacks:
                assert mine is not None
                storage.adopt(f"{mine.folder}/{name}", f"{self._staging}/{name}")
        except OSError as error:
            self._fail(error)

    def begin(self, name: str) -> None:
        """Begin to receive a file."""
        try:
            if self._error is None:
                sink = self._storage.write(f"{self._staging}/{name}")
                self._open = (sink, io.BufferedWriter(sink, BLOCK))
        except OSError as error:
            self._fail(error)

    def take(self, data: memoryview) -> None:
        """Its next bytes."""
        try:
            if self._open is not None:
                self._open[1].write(data)
        except OSError as error:
            self._fail(error)

    def end(self, name: str) -> None:
        """Finish the file that is being received."""
        if self._open is None:
            return
        sink, stream = self._open
        self._open = None
        try:
            stream.close()
            if sink.sum() != self._manifest.files[name]:
                raise OSError(f"{name} did not arrive as it was sent")
        except OSError as error:
            self._fail(error)

    def finish(self) -> str:
        """Publish the folder in place of what is there, whose intact files are in it; its name.

        Raises:
            OSError: What has gone wrong since the beginning. Nothing of it is left.
        """
        try:
            if self._error is not None:
                raise self._error
            self._storage.put(f"{self._staging}/{NAME}", encode(self._manifest))
            position = self._manifest.position
            for folder in self._storage.folders():
                if parse(folder) != position or folder == self._staging:
                    continue
                others = {*self._storage.names(folder)} - self._intact - {NAME}
                if not others or not catalog.set_aside(self._storage, folder):
                    self._storage.remove(folder)
            with self._storage.guard() as locked:
                folder = self._storage.publish(self._staging, str(position))
                if locked:
                    catalog.point(self._storage)
        except BaseException:
            self._storage.remove(self._staging)
            raise
        return folder

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open[0].abandon()
            self._open = None
