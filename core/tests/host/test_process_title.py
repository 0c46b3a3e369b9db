from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from elastic_core.host.process_title import Title
def shown():
    return [open(f"/proc/self/{name}").read() for name in ("comm", "cmdline")]
before = shown()
title = Title()
title.show_starter("fork server")
name, line = shown()
assert name == "elastic-warm\\n", name
assert line.startswith("elastic: fork server of "), line
assert len(line) == len(before[1])
title.show(sys.orig_argv)
assert shown() == before
title.show([*sys.orig_argv[:-1], "b" * len(sys.argv[-1])])
assert shown()[1] == before[1][:-5] + "bbbb\\0"
title.show([*sys.orig_argv, "no room for this"])
assert shown()[1] == before[1]
title.show([*sys.orig_argv[:-1], "as much of this as there is room for"])
assert shown()[1] == before[1][:-5] + "as m\\0"
title.show([*sys.orig_argv[:-2], "pass" + "word=x"])
assert shown()[1].rstrip("\\0").endswith("\\0pass" + "word=***"), shown()
"""


def test_a_fork_server_is_no_worker_to_who_looks_and_a_fork_of_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "aaaa"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


ENVIRONMENT = """
import os
from elastic_core.host.process_title import Title
def shown():
    return open("/proc/self/environ", "rb").read().rstrip(b"\\0").split(b"\\0")
given = dict(os.environ)
os.environ.clear()
os.environ.update(given)
title = Title()
del given["ROOM"]
title.show_environment({"RANK": "3", **given, "FEW": "bytes"})
assert shown() == [b"RANK=3", *(os.fsencode(f"{name}={value}") for name, value in given.items()), b"FEW=bytes"], shown()
title.show_environment({"RANK": "3", "MANY": "bytes" * 20_000, "NEVER": "shown"})
assert shown() == [b"RANK=3"]
assert os.environ == {**given, "ROOM": os.environ["ROOM"]}
"""


def test_a_fork_shows_the_variables_that_it_has_as_far_as_there_is_room() -> None:
    env = {**os.environ, "ROOM": " " * 100}
    done = subprocess.run([sys.executable, "-c", ENVIRONMENT], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


HIDING = """
import sys
from elastic_core.host.process_title import hide_passwords
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
