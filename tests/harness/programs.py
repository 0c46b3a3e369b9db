"""Runs a small program as a worker, below a real warden, fresh or forked, and finds its cause as the agent does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wardens import PATIENCE, Listener

from elastic_causes import failure_recorder
from elastic_causes.find import find_cause
from elastic_core.agent.output import TAIL
from elastic_core.agent.worker_channels import Failed, Report, Reported, Reports
from elastic_core.causes import EXCEPTION_EXIT_CODE, Cause
from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.messages import StartedFresh, StarterReady
from elastic_core.worker.error_file import read_error_file
from elastic_warmstart.starter import fork_server

PYTHON = (sys.executable, "-u")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program."""

    code: int
    stdout: str
    stderr: str
    cause: Cause
    failed: bool  # whether it has reported that an exception has ended it
    over: bool  # whether it has reported that it has ended otherwise
    records: bool  # whether it has reported that it records exceptions


@dataclass
class Programs:
    """A warden with a fork server for ``train.py`` in a folder."""

    folder: Path
    modules: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script = self.folder / "train.py"
        self.script.write_text("")
        self.env = {**os.environ, **self.environment}
        before = os.getcwd()
        os.chdir(self.folder)  # the fork server's
        try:
            self.listener = Listener(Warden())
        finally:
            os.chdir(before)
        if self.modules:
            starter = fork_server(tuple(self.modules), python=PYTHON, program=[str(self.script)], env=self.env)
            self.listener.warden.begin_starter(starter)
            self.listener.wait(StarterReady)
        self.reports = Reports(lambda _at, _report: None)

    def close(self) -> None:
        """End all processes."""
        self.listener.warden.close(PATIENCE)
        self.reports.close()

    def run(self, program: str, argv: Sequence[str] = (), *, warm: bool = False, args: Sequence[str] = ()) -> Outcome:
        """Run a program, by another command where ``argv`` is given."""
        self.script.write_text(program)
        error_file, tag, reported = self.folder / "error.json", self.listener.tag(), Reported()
        error_file.unlink(missing_ok=True)
        command = [*argv] if argv else [*PYTHON, str(self.script), *args]
        out, err = self.folder / "stdout", self.folder / "stderr"
        env = {**self.env, "TORCHELASTIC_ERROR_FILE": str(error_file)}
        with self.reports.open(tag, reported) as control, out.open("wb") as stdout, err.open("wb") as stderr:
            self.listener.warden.spawn(
                tag,
                SpawnRequest(command, env, cwd=str(self.folder), warm=warm, startup=[failure_recorder.__file__]),
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
                control=control.fileno(),
            )
        code = self.listener.end(tag).returncode
        fresh = [event.why for event in self.listener.all_of(StartedFresh) if event.tag == tag]
        assert not (warm and fresh), fresh
        told: list[Report] = self.reports.receive()
        failed = Failed(tag) in told
        self.reports.clear()
        stderr_text = err.read_bytes()[-TAIL:].decode(errors="replace")
        ended_with = EXCEPTION_EXIT_CODE if failed else code
        cause = find_cause(
            ended_with,
            read_error_file(error_file),
            stderr_text,
            records=reported.records,
            over=reported.over,
        )
        over, records = reported.over and not failed, reported.records or failed
        return Outcome(code, out.read_text(), err.read_text(), cause, failed, over, records)
