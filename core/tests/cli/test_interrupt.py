from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from elastic_core.cli.interrupt import end_at_once, raise_again

SENDS_SIGNAL = """
import os, signal, sys

class Finder:
    begun, count = False, 0

    def find_spec(self, name, path=None, target=None):
        if name in ("elastic_core", "__future__", "elastic_core.cli", "elastic_core.cli.main"):
            Finder.begun = True
        elif Finder.begun:
            with open(imported, "a") as file:
                print(name, file=file)
            Finder.count += 1
            if at in (name, str(Finder.count)):
                os.kill(os.getpid(), signum)

if "INTERRUPT_AT" in os.environ:  # not in what this process starts
    at, imported = os.environ.pop("INTERRUPT_AT"), os.environ.pop("IMPORTED")
    signum = int(os.environ.pop("INTERRUPT_WITH"))
    sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize that sends its own process a signal at the import of a name, or at the n-th after ``main``."""
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Runs a program as the first process of a pid namespace."""
ELASTIC = "import sys; from elastic_core.cli.main import main; sys.exit(main())"
"""The console script."""
STARTED = "elastic_core.agent.membership"
"""Imported when the command line is read, and the agent's own handlers are about to be there."""
AFTER = "elastic_torchrun.error_file"
"""Imported when the run has failed, and the agent's own handlers are no longer there."""
with_torchrun = pytest.mark.skipif(find_spec("elastic_torchrun") is None, reason="core alone imports nothing then")


def interrupted(
    tmp_path: Path, at: int | str, *program: str, signum: int = signal.SIGINT, before: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A run that gets a signal at an import, and what it had imported by its end."""
    (tmp_path / "sitecustomize.py").write_text(SENDS_SIGNAL)
    imported = tmp_path / "imported"
    imported.write_text("")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "INTERRUPT_AT": str(at),
        "INTERRUPT_WITH": str(int(signum)),
        "IMPORTED": str(imported),
    }
    command = [*before, sys.executable, "-c", ELASTIC, "run", "--standalone", "--no_python", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done, imported.read_text().split()


def test_sigint_ends_a_run_quietly_wherever_it_is_on_its_way(tmp_path: Path) -> None:
    """An import that was interrupted showed its traceback, or forgot the signal."""
    done, imported = interrupted(tmp_path, 0, "true")
    assert done.returncode == 0, done.stderr
    early = imported.index(STARTED)
    for at in range(1, early, max(1, early // 20)):
        done, _ = interrupted(tmp_path, at, "sleep", "1000")
        assert (done.returncode, done.stderr) == (130, ""), f"at the import of {imported[at - 1]}"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_not_lost_on_the_first_process_of_a_container(
    tmp_path: Path, signum: signal.Signals
) -> None:
    """The kernel discards a signal that such a process does not handle."""
    _, imported = interrupted(tmp_path, 0, "true")
    at = imported.index(STARTED)
    done, _ = interrupted(tmp_path, at, "sleep", "1000", signum=signum, before=CONTAINER)
    assert (done.returncode, done.stderr) == (128 + signum, "")


@pytest.mark.parametrize(
    ("at", "program", "returncode"),
    [
        pytest.param(AFTER, ["false"], 1, id="once the run is over", marks=with_torchrun),
        pytest.param(STARTED, ["--signals_to_handle=SIGUSR1", "true"], 0, id="if the agent does not leave on it"),
    ],
)
def test_the_first_process_of_a_container_ends_on_no_other_request(
    tmp_path: Path, at: str, program: list[str], returncode: int
) -> None:
    """The job's own exit code would be lost, or workers that were to go on."""
    done, imported = interrupted(tmp_path, at, *program, signum=signal.SIGTERM, before=CONTAINER)
    assert at in imported
    assert done.returncode == returncode, done.stderr


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_not_pythons_own_stays(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        end_at_once()
        assert signal.getsignal(signal.SIGINT) is handler
        raise_again()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
