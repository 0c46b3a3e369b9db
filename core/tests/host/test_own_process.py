from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

HIDING = """
import sys
from elastic_core.host.own_process import hide_passwords
hide_passwords(sys.argv[1:])
print(open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")[3:], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--rdzv_endpoint=redis://u:s3 cr@t@host:1", "train.py"], ["--rdzv_endpoint=redis://***@host:1", "train.py"]),
        (["--rdzv_conf", "a=1,password=s3c,r3t", "train.py"], ["--rdzv_conf", "a=1,password=***", "train.py"]),
        (["--rdzv_conf=sentinel_password=s3cr3t"], ["--rdzv_conf=sentinel_password=***"]),
        (["--rdzv_conf=a=http://h,password=s@3c"], ["--rdzv_conf=a=http://h,password=***"]),
        (["--rdzv_endpoint=u:s3cr@t@host:1"], ["--rdzv_endpoint=u:***@host:1"]),
        (["--rdzv_conf=passwrd=s3cr3t"], ["--rdzv_conf=passwrd=***"]),
        (["password=x", "train.py", "1"], ["password=***", "train.py"]),
        (["--rdzv_conf=password_file=/a/b,c=d", "http://a:1"], ["--rdzv_conf=password_file=/a/b,c=d", "http://a:1"]),
        ([], []),
    ],
    ids=["URL", "conf", "longer name", "beside a URL", "no URL", "misspelt", "no room for all", "none", "no arguments"],
)
def test_a_command_line_shows_no_password_and_the_program_has_it(given: list[str], shown: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HIDING, *given], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{shown} {given}\n", "")


ENDING = """
import atexit, os, sys, threading
from elastic_core.host.own_process import end_before_threads
atexit.register(print, "atexit")
sys.modules["late"] = type("Late", (), {"__del__": lambda self, write=os.write: write(2, b"finalized")})()
if "daemon" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if "other" in sys.argv:
    threading.Timer(0.1, print, ["other thread"]).start()
if "closed" in sys.argv:
    sys.stdout.close()
end_before_threads(7)
sys.exit(7)
"""
OLD = sys.version_info < (3, 14)


def end(*given: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", ENDING, *given], stderr=subprocess.PIPE, text=True, env=environ, **more
    )


@pytest.mark.parametrize(
    ("given", "out", "finalized"),
    [
        (["daemon", "other"], "other thread\natexit\n", not OLD),
        (["other"], "other thread\natexit\n", True),
    ],
    ids=["with a daemon thread", "without one"],
)
def test_a_process_with_daemon_threads_ends_before_the_interpreter_is_finalized(
    given: list[str], out: str, finalized: bool
) -> None:
    done = end(*given, stdout=subprocess.PIPE)
    assert (done.stdout, done.stderr, done.returncode) == (out, "finalized" * finalized, 7)


def test_a_stdout_that_was_closed_is_not_missed() -> None:
    done = end("daemon", "closed", stdout=subprocess.DEVNULL)
    assert (done.returncode, "finalized" in done.stderr) == (7, not OLD)


def test_a_full_disk_is_told_where_the_last_output_is_lost() -> None:
    with open("/dev/full", "w") as full:
        done = end("daemon", stdout=full)
    assert done.returncode == 120
    assert "<stdout>" in done.stderr
    assert "No space left on device" in done.stderr


def test_the_exit_code_of_a_process_that_calls_main_is_its_own() -> None:
    program = (
        "import sys; from elastic_core.cli.main import main; sys.argv = ['elastic', '--version']; main(); sys.exit(5)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 5
