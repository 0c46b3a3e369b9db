from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from elastic_core.warm.title import Title
def shown():
    return [open(f"/proc/self/{name}").read() for name in ("comm", "cmdline")]
before = shown()
title = Title()
title.show_template()
name, line = shown()
assert name == "elastic-warm\\n", name
assert line.startswith("elastic: template of "), line
assert len(line) == len(before[1])
title.show(sys.orig_argv)
assert shown() == before
title.show([*sys.orig_argv[:-1], "b" * len(sys.argv[-1])])
assert shown()[1] == before[1][:-5] + "bbbb\\0"
title.show([*sys.orig_argv, "no room for this"])
assert shown()[1] == before[1]
"""


def test_a_template_is_no_worker_to_who_looks_and_a_fork_of_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "aaaa"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
