"""Copies lines of the workers' output that contain a text to a file of the round: two flags of torchrun's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from elastic_core import hookimpl
from elastic_core.agent import write_all
from elastic_core.config import Flag, RunConfig
from elastic_core.config.parse import Stream
from elastic_core.events import Event, Level
from elastic_core.monitors import LineReader, RunningRound

LINE_MAX_BYTES = 1 << 22  # of a line; of a longer one the end is read


def texts(text: str) -> tuple[str, ...]:
    """Parse texts, separated by commas; a comma within a text is written twice."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


NAMES = {Stream.OUT: "stdout", Stream.ERR: "stderr"}
FLAGS: Mapping[Stream, Flag[tuple[str, ...]]] = {
    stream: Flag(
        name=f"duplicate_{name}_filters",
        text=f"Also write lines of {name} that contain one of these to filtered_{name}.log; ,, is a comma.",
        section="Output",
        parse=texts,
        default="",
        metavar="TEXTS",
        after="local_ranks_filter" if stream is Stream.OUT else "duplicate_stdout_filters",
    )
    for stream, name in NAMES.items()
}


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that :class:`StreamFilters` reads."""
    return tuple(FLAGS.values())


class StreamFilters:
    """The plugin."""

    def __init__(self) -> None:
        self._texts: Mapping[Stream, tuple[str, ...]] = {}

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> bool:
        """Read the flags; return True to have the files kept."""
        self._texts = {stream: found for stream, flag in FLAGS.items() if (found := config.of(flag))}
        return bool(self._texts)

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Read the streams whose lines are copied."""

        @cache  # several workers share a file
        def report(message: str) -> None:
            round.publish(Event("output", f"{message}; the worker goes on", Level.WARNING))

        def open(rank: int, stream: Stream, prefix: str) -> LineReader | None:
            if (found := self._texts.get(stream)) is None:
                return None
            path = round.directory / f"filtered_{NAMES[stream]}.log"
            try:
                return CopiedLines(found, prefix, path, report)
            except OSError as exc:
                report(f"{path} cannot be written: {exc.strerror}")
                return None

        if self._texts:
            round.read_output(open, every_stream=Stream.OUT in self._texts, apart=True)


class CopiedLines(LineReader):
    """Copies the lines of one stream that contain one of ``texts``, each behind ``prefix``, to a file of all ranks.

    ``report`` is called once if the file cannot take all lines.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, texts: Sequence[str], prefix: str, path: Path, report: Callable[[str], None]) -> None:
        super().__init__(self._copy, LINE_MAX_BYTES)
        self._texts, self._prefix, self._path = texts, prefix, path
        self._report: Callable[[str], None] | None = report
        # It appends, so that lines of several ranks stay whole. A FIFO is not waited for, a link is not followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o640)
        os.set_blocking(self._file, True)

    def finish(self) -> None:
        """Copy the last line, and close the file."""
        super().finish()
        os.close(self._file)

    def _copy(self, line: str) -> None:
        if any(text in line for text in self._texts):
            before = "" if line.startswith(self._prefix) else self._prefix
            try:
                write_all(self._file, f"{before}{line}\n".encode())
            except OSError as exc:
                report, self._report = self._report, None
                if report is not None:
                    report(f"{self._path} is not complete: {exc.strerror}")
