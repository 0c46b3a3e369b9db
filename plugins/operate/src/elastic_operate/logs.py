"""``elastic logs``: print the workers' output that ``--log_dir`` has kept, of a round or a rank, and follow it.

The directory of a run is ``LOG_DIR/JOB_RUN/round_N/rank_R/{stdout,stderr}.log``; several nodes may share it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

from elastic_core.config import flag_variable
from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode

FOLLOW_INTERVAL_SECONDS = 0.2
HOW_TO_KEEP = "Start the job with --log_dir=DIRECTORY, which keeps the workers' output by round and rank."
_PIECE_BYTES = 1 << 16
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LOG = re.compile(r"round_(?P<round>\d+)/rank_(?P<rank>\d+)/(?P<stream>stdout|stderr)\.log")


class Log(NamedTuple):
    """One file of output, ordered as ``elastic logs`` prints them."""

    round: int
    rank: int
    stream: str
    path: Path

    @property
    def label(self) -> str:
        """The prefix of each of its lines."""
        return f"[round {self.round}, rank {self.rank}, {self.stream}] "


class Selection(NamedTuple):
    """The files to print; None for all."""

    round: int | None = None
    rank: int | None = None
    stream: str | None = None

    def takes(self, log: Log) -> bool:
        """Return True if a file is to be printed."""
        return all(wanted in (None, found) for wanted, found in zip(self, log[:3], strict=True))


def find_run(directory: Path) -> Path:
    """Return the directory of a run: this one, or the run below it that wrote last.

    Raises:
        UsageError: There is no such directory, or no run's output is in it.
    """
    try:
        entries = [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError as exc:
        raise UsageError(
            f"The log directory {str(directory)!r} cannot be read: {exc.strerror}.",
            hint="Name the --log_dir of the run, or the run's directory in it, which the agent prints when it starts.",
        ) from exc
    if any(entry.name.startswith("round_") for entry in entries):
        return directory
    runs = [entry for entry in entries if any(entry.glob("round_*"))]
    if not runs:
        raise UsageError(f"No run has kept output in {str(directory)!r}.", hint=HOW_TO_KEEP)
    return max(runs, key=_written_at)


def find_logs(run: Path, selection: Selection) -> list[Log]:
    """Return the files of a run that are to be printed, in order."""
    found = []
    for path in run.glob("round_*/rank_*/*.log"):
        if (match := _LOG.fullmatch(path.relative_to(run).as_posix())) is not None:
            log = Log(int(match["round"]), int(match["rank"]), match["stream"], path)
            if selection.takes(log):
                found.append(log)
    return sorted(found)


class Follower:
    """Prints what is new in the files of a run, each line with its label. A file is read once, from its beginning."""

    def __init__(self, run: Path, selection: Selection, out: BinaryIO) -> None:
        self._run, self._selection, self._out = run, selection, out
        self._read: dict[Path, int] = {}

    def print_new(self, *, last: bool) -> bool:
        """Print new whole lines of all files, with ``last`` also one that has no end; return True if there were any."""
        printed = False
        for log in find_logs(self._run, self._selection):
            for line in self._new_lines(log.path, last=last):
                self._out.write(log.label.encode() + line)
                printed = True
        self._out.flush()
        return printed

    def _new_lines(self, path: Path, *, last: bool) -> Iterator[bytes]:
        """Yield what is new in a file, in lines; a carriage return ends one too, as in progress bars."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # removed meanwhile, or a link
            return
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            file.seek(self._read.get(path, 0))
            while piece := file.read(_PIECE_BYTES):
                *lines, rest = _LINE_END.split(piece)
                if len(piece) == _PIECE_BYTES and not lines:  # a line that is longer than a piece is cut
                    lines, rest = [piece], b""
                self._read[path] = file.tell() - len(rest)
                yield from (line + b"\n" for line in lines)
                if len(piece) < _PIECE_BYTES:
                    if rest and last:
                        yield rest + b"\n"
                    return
                file.seek(-len(rest), os.SEEK_CUR)


def _written_at(run: Path) -> float:
    newest = 0.0
    for path in (run, *run.glob("round_*"), *run.glob("round_*/rank_*/*.log")):
        with contextlib.suppress(OSError):  # an agent removes what is empty
            newest = max(newest, path.lstat().st_mtime)
    return newest


def directory_of(name: str | None) -> Path:
    """Return the directory for logs of a job of this host: the newest that keeps logs, or else the last that has ended.

    Raises:
        UsageError: No such job keeps logs.
    """
    from elastic_operate.host_jobs import find_job, host_jobs
    from elastic_operate.job_file import LAST_LOGS, read_last

    jobs = [*reversed(host_jobs())] if name is None else [job for job in [find_job(name)] if job is not None]
    found = [(job.newest.job, job.logs) for job in jobs if job.logs]
    if not found and name is None and (last := read_last(LAST_LOGS)) is not None and os.path.isdir(last.logs):
        found = [(last.job, last.logs)]
    if not found:
        which = "No job of this host" if name is None else f"There is no directory {name!r}, and no job of this host"
        raise UsageError(
            f"{which}{'' if name is None else ' with that id'} keeps logs.",
            hint=f"Write elastic logs DIRECTORY. {HOW_TO_KEEP}",
        )
    job, directory = found[0]
    click.echo(f"elastic: logs of job {job!r} in {directory}", err=True)
    return Path(directory)


@click.command("logs", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", default=lambda: os.environ.get(flag_variable("log_dir")), required=False)
@click.option("--round", "number", type=click.IntRange(1), metavar="N", help="Only the output of round N.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only the output of rank R.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
def command(directory: str | None, number: int | None, rank: int | None, stream: str | None, follow: bool) -> int:
    """Print the output of workers that `elastic run --log_dir=DIRECTORY` has kept.

    DIRECTORY is the --log_dir, whose newest run is printed, or the directory of one run, or the id of one of your jobs
    on this host. PET_LOG_DIR is its default, and without that the newest job of this host, or the last that has ended.
    """
    named = directory is not None and (os.sep in directory or os.path.isdir(directory))
    run = find_run(Path(directory) if directory is not None and named else directory_of(directory))
    selection = Selection(number, rank, stream)
    follower = Follower(run, selection, sys.stdout.buffer)
    try:
        if not follow and not find_logs(run, selection):
            raise UsageError(f"No output in {str(run)!r} is of that round, rank and stream.", hint=_describe(run))
        if not follower.print_new(last=not follow) and not follow:
            click.echo("elastic: the output is empty", err=True)
        while follow:
            time.sleep(FOLLOW_INTERVAL_SECONDS)
            follower.print_new(last=False)
    except BrokenPipeError:  # `elastic logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(ExitCode.SUCCESS)


def _describe(run: Path) -> str:
    """Return which rounds, ranks and streams have output, or how output is kept."""
    if not (logs := find_logs(run, Selection())):
        return HOW_TO_KEEP
    rounds, ranks = sorted({log.round for log in logs}), sorted({log.rank for log in logs})
    streams = " and ".join(sorted({log.stream for log in logs}))
    return f"There is: rounds {rounds[0]} to {rounds[-1]}, ranks {ranks[0]} to {ranks[-1]}, {streams}."
