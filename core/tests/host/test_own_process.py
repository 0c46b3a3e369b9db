from __future__ import annotations

import os
import subprocess
import sys

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
from elastic_core.host.own_process import LastExit
last = LastExit()
atexit.register(print, "atexit")
sys.modules["late"] = type("Late", (), {"__del__": lambda self, write=os.write: write(1, b"finalized")})()
if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if "forked" in sys.argv and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if "code" in sys.argv:
    last.code = 7
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("given", "out"),
    [
        (["code", "thread"], "atexit\n"),
        (["code"], "atexit\nfinalized"),
        (["thread"], "atexit\nfinalized"),
        (["code", "forked"], "atexit\nfinalizedatexit\nfinalized"),
    ],
    ids=["with a daemon thread", "without one", "after an exception", "a child"],
)
def test_a_process_with_daemon_threads_ends_before_the_interpreter_is_finalized(given: list[str], out: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING, *given], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == (out, "", 7)


def test_a_full_disk_is_told_where_the_last_output_is_lost() -> None:
    with open("/dev/full", "w") as full:
        command, buffered = [sys.executable, "-c", ENDING, "code", "thread"], {**os.environ, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered)
    assert (done.returncode, b"No space left on device" in done.stderr) == (120, True)
