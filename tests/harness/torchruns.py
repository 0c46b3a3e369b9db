"""Runs torchrun for each line on standard input, in forks of one process: torch is imported once for all of them.

A line is a JSON list of nodes, each with ``launch`` (whether torch.distributed.launch is meant), ``arguments``,
``environment``, ``directory``, ``input`` and ``output``. When all have ended, their exit codes are printed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from torch.distributed import launch, run


def become(node: dict[str, Any]) -> NoReturn:
    """Be one torchrun, to its end."""
    code = 1
    try:
        os.setsid()
        output = os.open(node["output"], os.O_WRONLY | os.O_CREAT)
        for fd, file in ((0, os.open(node["input"], os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(file, fd)
        os.chdir(node["directory"])
        os.environ.clear()
        os.environ.update(node["environment"])
        sys.argv = ["torchrun", *node["arguments"]]
        (launch if node["launch"] else run).main(node["arguments"])
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException as exc:
        os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
    os._exit(code)


for line in sys.stdin:
    pids = []
    for each in json.loads(line):
        if (pid := os.fork()) == 0:
            become(each)
        pids.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
