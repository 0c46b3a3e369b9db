"""The file of an agent's newest decisions, for a bug report: ``python -m simulator --replay FILE`` makes them again.

It has one JSON object a line: first a header, then each call. An object of a dataclass is written in full once, and as
its number after that.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core import __version__
from elastic_core.threads import bounded

if TYPE_CHECKING:
    from elastic_core import Decision, JoinedRun

WRITE_MAX_SECONDS = 5.0  # for which a disk that does not answer, as of a dead server, is waited for


def write_decisions(run: JoinedRun) -> str:
    """Write the newest decisions of an agent, and return the path of the file, or why there is none."""
    try:
        return str(bounded(partial(write, run.decisions(), run.node.node_id, run.log_dir), WRITE_MAX_SECONDS))
    except Exception as exc:  # a full disk must not end the agent, nor replace the exception that has
        return f"not written: {exc}"


def write(calls: Iterable[Decision], node_id: str, directory: Path | None) -> Path:
    """Write calls into the file of a node, for this user alone, in order of time, and return its path.

    Without a ``directory`` it is made where temporary files are. An earlier file of the node is replaced. Raise OSError
    if the file cannot be written.
    """
    fd, scratch = tempfile.mkstemp(prefix=f"elastic_decisions_{node_id}_", dir=directory)
    path = Path(scratch).with_name(f"elastic_decisions_{node_id}.jsonl")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(sorted(calls, key=lambda call: call.at), node_id))
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise
    return path


def lines(calls: Iterable[Decision], node_id: str) -> Iterator[str]:
    """Yield the lines of the file."""
    yield json.dumps({"decisions": 1, "release": __version__, "node": node_id})
    numbers: dict[int, int] = {}
    for call in calls:
        plain = {each.name: _plain(getattr(call, each.name), numbers) for each in fields(call)}
        yield json.dumps(plain, separators=(",", ":"))


def _plain(value: object, numbers: dict[int, int]) -> Any:
    """Return a value as JSON. ``numbers`` has the numbers of the dataclass objects written so far, by ``id()``."""
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, Enum):
        return {"class": kind, "value": value.value}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        if (number := numbers.get(id(value))) is not None:
            return {"same": number}
        parts = {each.name: _plain(getattr(value, each.name), numbers) for each in fields(value) if each.init}
        number = numbers[id(value)] = len(numbers)
        return {"class": kind, "number": number, "fields": parts}
    if isinstance(value, Mapping):
        return {"map": [[_plain(key, numbers), _plain(part, numbers)] for key, part in value.items()]}
    if isinstance(value, Set):
        return {"set": sorted((_plain(part, numbers) for part in value), key=str)}
    if isinstance(value, (tuple, list)):
        parts_of = [_plain(part, numbers) for part in value]
        return parts_of if type(value) in (tuple, list) else {"class": kind, "items": parts_of}
    return {"unknown": repr(value)}
