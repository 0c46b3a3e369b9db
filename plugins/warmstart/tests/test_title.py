"""The title of a fork server and of its forks in ``ps`` and ``/proc``."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
from elastic_warmstart.process import ForkTitle
def shown():
    return [open(f"/proc/self/{name}").read() for name in ("comm", "cmdline")]
before = shown()
title = ForkTitle()
title.show_server()
name, line = shown()
assert name == "elastic-warm\\n", name
assert line.startswith("elastic: fork server of "), line
assert len(line) == len(before[1])
title.show_worker(sys.orig_argv)
assert shown() == before
title.show_worker([*sys.orig_argv[:-1], "b" * len(sys.argv[-1])])
assert shown()[1] == before[1][:-5] + "bbbb\\0"
title.show_worker([*sys.orig_argv, "no room for this"])
assert shown()[1] == before[1]
title.show_worker([*sys.orig_argv[:-1], "as much of this as there is room for"])
assert shown()[1] == before[1][:-5] + "as m\\0"
title.show_worker([*sys.orig_argv[:-2], "pass" + "word=x"])
assert shown()[1].rstrip("\\0").endswith("\\0pass" + "word=***"), shown()
"""


def test_a_fork_server_is_no_worker_to_who_looks_and_a_fork_of_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "aaaa"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


ENVIRONMENT = """
import os
from elastic_warmstart.process import ForkTitle
def shown():
    return open("/proc/self/environ", "rb").read().rstrip(b"\\0").split(b"\\0")
given = dict(os.environ)
os.environ.clear()
os.environ.update(given)
title = ForkTitle()
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
