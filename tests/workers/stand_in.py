"""Stands in for the script or module of a launch line: writes down what this worker sees."""

from __future__ import annotations

import json
import os
import sys

view = {
    "environment": dict(os.environ),
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "standard input": os.readlink("/proc/self/fd/0"),
    "__name__": __name__,
    "sys.path[0]": sys.path[0],
    "unbuffered": getattr(sys.stdout, "write_through", None),
}
with open(os.path.join(os.environ["STAND_IN_VIEWS"], os.environ["RANK"]), "w") as file:
    json.dump(view, file)
