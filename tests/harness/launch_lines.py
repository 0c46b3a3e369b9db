"""Public command lines of torchrun: their flags and variables, and where they were seen.

Values that a script computes are written as examples: ``$head_node_ip:29500`` as ``node0:29500``. ``{node}`` is the
node's rank. No other text of these projects is here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

TORCHRUN, RUN, LAUNCH = "torchrun", "python -m torch.distributed.run", "python -m torch.distributed.launch"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One command line.

    Attributes:
        seen: Where: a repository on GitHub and a path in it.
        launcher: What it calls.
        flags: The launcher's flags.
        arguments: The script's, as far as the launcher could mistake them.
        environ: Variables that the launcher reads, or that a scheduler has set.
        nodes: How many nodes its author starts.
        differs: Variables that workers see otherwise than under torchrun, each with the reason.
    """

    seen: str
    launcher: str = TORCHRUN
    flags: str = ""
    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The whole line, with its variables in front."""
        program = () if "-m " in f" {self.flags} " else ("train.py",)
        return " ".join(
            [*(f"{k}={v}" for k, v in self.environ.items()), self.launcher, self.flags, *program, *self.arguments]
        )


LINES = tuple(Line(**row) for row in json.loads(Path(__file__).with_suffix(".json").read_text()))

GENERAL = {
    "ELASTIC_*": "variables of ours; torchrun's workers have none",
    "MASTER_ADDR": "the host's address where torchrun gives its name",
    "TORCHELASTIC_ERROR_FILE": "another directory",
    "TORCHELASTIC_MAX_RESTARTS": "3 where the line says nothing; torchrun's default is 0",
    "TORCHELASTIC_RUN_ID": "a new id where torchrun's is `none` and no other node can join",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "not set; torchrun tells its own agent so",
    "TORCHELASTIC_USE_AGENT_STORE": "the same `True`; with `--no_warm_start`, as in the test, `False`",
}
"""The differences under every line, and the reasons."""


def table() -> str:
    """Return the page's table: a row for each project."""
    rows = ["| project | lines | what workers see |", "|---|---|---|"]
    for project, lines in groupby(sorted(LINES, key=lambda line: line.seen.lower()), lambda line: line.seen.split()[0]):
        found = list(lines)
        told = [f"`{line.command}`: `{name}`: {why}" for line in found for name, why in line.differs.items()]
        rows.append(f"| {project} | {len(found)} | {'; '.join(told) or 'same'} |")
    return "\n".join(rows) + "\n"
