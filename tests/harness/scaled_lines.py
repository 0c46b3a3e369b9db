"""Scaling of a launch line to the size of a test: two workers on a node, two nodes, all on this host."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from launch_lines import Line

WITHOUT_VALUE = {"standalone", "use_env", "m"}
SCRIPT, MODULE = "stand_in.py", "stand_in"


@dataclass(frozen=True)
class ScaledLine:
    """The program of a line, equal for lines with the same effect.

    ``{port}`` stands for a free port and ``{node}`` for the node's rank. Flags have the program behind them.
    """

    launcher: str
    flags: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    nodes: int


def scale(line: Line) -> ScaledLine:
    """Scale a line.

    Numbers of workers and nodes above 1 become 2, and a range of nodes its end. Hosts and addresses become this host's,
    and ports a free one; port 0 stays. Ids of jobs become ``job``, and the script's arguments ``--lr 1``.
    """
    environ = tuple((name, _value(name.removeprefix("PET_").lower(), text)) for name, text in line.environ.items())
    flags = tuple(_words(shlex.split(line.flags)))
    program = () if "-m" in flags else (SCRIPT,)
    return ScaledLine(
        line.launcher, (*flags, *program, *(["--lr", "1"] if line.arguments else [])), environ, min(line.nodes, 2)
    )


def _words(words: list[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        dashed, equals, text = word.partition("=")
        name = dashed.lstrip("-").replace("-", "_")
        if name == "m":
            next(rest)
            yield from (word, MODULE)
        elif equals:
            yield f"{dashed}={_value(name, text)}"
        elif name in WITHOUT_VALUE:
            yield word
        else:
            yield from (word, _value(name, next(rest)))


def _value(name: str, text: str) -> str:
    match name:
        case "nproc_per_node":
            return str(min(int(text), 2))
        case "nnodes" | "nnode":
            return str(min(int(text.rpartition(":")[2]), 2))
        case "master_addr":
            return "localhost" if text == "localhost" else "127.0.0.1"
        case "rdzv_id" | "slurm_job_id":
            return "job"
        case "master_port":
            return "{port}"
        case "rdzv_endpoint" if text and not text.endswith(":0"):
            return f"{'localhost' if text.startswith('localhost') else '127.0.0.1'}:{{port}}"
    return text
