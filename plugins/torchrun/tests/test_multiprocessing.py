"""Processes on this host: what is started ends with its starter, and what is said of it is this start's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from elastic_core.config.parse import Stream
from elastic_core.errors import ElasticError, UsageError
from elastic_torchrun.multiprocessing import PContext, start_processes

ENDS_WHEN_TOLD = """
import signal, sys
def end(*_):
    open(sys.argv[2], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1], "w").close()
signal.pause()
"""
FAILS_WITH_A_REASON = """
import os
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write('{"message": "the first reason"}')
raise SystemExit(1)
"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
WAITS = "import signal; signal.pause()"
STARTER = f"""
import signal, sys
from elastic_torchrun.multiprocessing import start_processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
context = start_processes("p", sys.executable, {{0: ("-c", {WAITS!r})}}, {{0: {{}}}})
context.pids()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print("READY", flush=True)
signal.pause()
"""


def start(code: str, *args: str, log_dir: Path | None = None, redirects: Stream = Stream.NONE) -> PContext:
    return start_processes("p", sys.executable, {0: ("-c", code, *args)}, {0: {}}, log_dir, redirects=redirects)


def parent_of(pid: int) -> int:
    found = re.search(r"^PPid:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_a_process_that_nobody_has_asked_for_its_pid_gets_the_signal_and_the_grace(tmp_path: Path) -> None:
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    os.mkfifo(ready)
    context = start(ENDS_WHEN_TOLD, str(ready), str(ended))
    ready.read_bytes()  # until it has opened the other end
    context.close()
    assert ended.exists()


@pytest.mark.parametrize("waits", [1, 2, 0])
def test_the_death_of_what_started_them_is_told_and_keeps_nobody_from_closing(waits: int) -> None:
    context = start(WAITS)
    os.kill(parent_of(context.pids()[0]), signal.SIGKILL)
    for _ in range(waits):
        with pytest.raises(
            ElasticError, match=re.escape("p: the process that started the workers is gone (it was killed by")
        ):
            context.wait()
    context.close()


def test_error_files_of_an_earlier_start_in_the_same_folder_explain_nothing(tmp_path: Path) -> None:
    with start(FAILS_WITH_A_REASON, log_dir=tmp_path, redirects=Stream.ALL) as context:
        first = context.wait()
    with start(DIES, log_dir=tmp_path) as context:
        second = context.wait()
    assert first is not None
    assert second is not None
    assert (first.failures[0].message, first.stdouts[0]) == ("the first reason", str(tmp_path / "0" / "stdout.log"))
    failure = second.failures[0]
    assert (failure.message, failure.error_file, second.stdouts[0]) == ("was killed by SIGKILL", "<N/A>", "")
    assert (failure.exitcode, failure.signal_name()) == (-signal.SIGKILL, "SIGKILL")
    assert failure.error_file_data == {"message": "<NONE>"}
    assert first.failures[0].error_file_data == {"message": "the first reason"}


RECORDS = """
import elastic_core as elastic
@elastic.record
def main():
    raise ValueError("boom")
main()
"""


def test_only_who_failed_by_itself_is_listed_and_as_torch_lists_it(tmp_path: Path) -> None:
    codes = [WAITS, RECORDS, "raise KeyError('unrecorded')"]
    for failing in (1, 2):
        arguments = {rank: ("-c", codes[failing] if rank == 1 else WAITS) for rank in range(3)}
        with start_processes("p", sys.executable, arguments, {rank: {} for rank in arguments}, tmp_path) as context:
            result = context.wait()
            again = context.wait()
        assert result is not None
        assert again is not None
        assert list(result.failures) == list(again.failures) == [1]
        failure = result.failures[1]
        assert (failure.exitcode, failure.signal_name(), failure.pid) == (1, "<N/A>", context.pids()[1])
        assert failure.message == ("ValueError: boom", "KeyError: 'unrecorded'")[failing - 1]
        if failing == 1:
            recorded = failure.error_file_data["message"]
            assert recorded["message"] == "ValueError: boom"
            assert failure.timestamp == int(recorded["extraInfo"]["timestamp"])
            assert recorded["extraInfo"]["py_callstack"].startswith("Traceback")
        assert datetime.fromisoformat(failure.timestamp_isoformat().replace("_", "T")).timestamp() == failure.timestamp


def test_processes_are_started_on_any_thread() -> None:
    results = []

    def work() -> None:
        with start("") as context:
            results.append(context.wait())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [result is not None and result.is_failed() for result in results] == [False]


def test_a_folder_for_logs_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        start("", log_dir=tmp_path / "file" / "logs")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_starter_that_a_signal_has_ended(tmp_path: Path, signum: signal.Signals) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=env) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "READY\n"
        assert len(list(tmp_path.iterdir())) == 2
        starter.send_signal(signum)
        assert starter.stdout.read() == ""  # until the last process that could write there is gone
    assert starter.returncode == -signum
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("entrypoint", "args", "envs", "message"),
    [
        (5, {0: ()}, {0: {}}, "The entrypoint 5 is neither a function nor a command."),
        ("true", [()], {0: {}}, "p: args is of the type list"),
        ("true", {0: ()}, None, "p: envs is of the type NoneType"),
    ],
)
def test_malformed_arguments_are_refused_before_anything_starts(
    entrypoint: Any, args: Any, envs: Any, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        start_processes("p", entrypoint, args, envs)
    assert refused.value.message.startswith(message)
