"""Replay of an agent's log of decisions (``elastic_core.decision_log``) against the functions of today."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from elastic_core.decision_log import describe_error
from elastic_core.protocol import leader, node

DIFFERENCES_SHOWN = 20


class UnreadableLogError(ValueError):
    """A line of the file cannot be read by this release."""


@dataclass(frozen=True)
class Difference:
    """A call that gives another result today.

    Attributes:
        line: Of the file, counted from 1.
        parts: The parts of the result that differ, one line each.
    """

    line: int
    call: str
    parts: tuple[str, ...]


def is_log(text: str) -> bool:
    """Return whether this is the text of a log of decisions, and not of a plan."""
    return text.startswith('{"decisions"')


def replay(text: str) -> tuple[int, list[Difference]]:
    """Return the number of calls in the log, and those that give another result today.

    Raises:
        UnreadableLogError: A line is not of this release's classes.
    """
    header, *lines = text.splitlines()
    objects: dict[int, object] = {}
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            plain = json.loads(line)
            arguments, recorded = (_value(plain[key], objects) for key in ("arguments", "result"))
            function = _function(plain["function"])
        except (ValueError, TypeError, LookupError, AttributeError, ImportError) as exc:
            release = json.loads(header).get("release")
            raise UnreadableLogError(
                f"line {number} cannot be read here: {exc!r}; elastic-core {release} wrote it"
            ) from exc
        if parts := (*_differences(function, arguments, recorded, plain["error"]),):
            found.append(Difference(number, f"{plain['function']} with {_short(arguments[-1])}", parts))
    return len(lines), found


def show(text: str) -> int:
    """Print how the decisions of today differ from those in the log; return 1 if one does."""
    count, differences = replay(text)
    for difference in differences[:DIFFERENCES_SHOWN]:
        print(f"line {difference.line}: {difference.call}")
        for part in difference.parts:
            print(f"  {part}")
    if len(differences) > DIFFERENCES_SHOWN:
        print(f"and {len(differences) - DIFFERENCES_SHOWN} more")
    print(f"{count} decisions, {len(differences)} of them differ today")
    return 1 if differences else 0


def _function(name: str) -> Callable[..., object]:
    known: dict[str, Callable[..., object]] = {"step": node.step, "decide": leader.decide}
    return known[name]


def _differences(function: Callable[..., object], arguments: Any, recorded: object, error: str) -> Iterator[str]:
    try:
        result, raised = function(*arguments), ""
    except Exception as exc:
        result, raised = None, describe_error(exc)
    if raised != error:
        yield f"it raised {error or 'nothing'}; today it raises {raised or 'nothing'}"
    elif isinstance(result, tuple) and isinstance(recorded, tuple):
        for name, before, today in zip(("state", "effects"), recorded, result, strict=True):
            yield from _compare(name, before, today)
    else:
        yield from _compare("decision", recorded, result)


def _compare(path: str, before: object, today: object) -> Iterator[str]:
    """Yield the innermost fields that differ."""
    if before == today:
        return
    if type(before) is type(today) and is_dataclass(before):
        for each in fields(before):
            yield from _compare(f"{path}.{each.name}", getattr(before, each.name), getattr(today, each.name))
    else:
        yield f"{path} was {_short(before)}; today {_short(today)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _value(plain: Any, objects: dict[int, object]) -> Any:
    """Return the value of its JSON form; ``objects`` has the dataclass objects that were read so far."""
    if isinstance(plain, list):
        return tuple(_value(part, objects) for part in plain)
    if not isinstance(plain, dict):
        return plain
    match plain:
        case {"same": number}:
            return objects[number]
        case {"map": items}:
            return {_value(key, objects): _value(part, objects) for key, part in items}
        case {"set": items}:
            return frozenset(_value(part, objects) for part in items)
        case {"class": name, "value": value}:
            return _class(name)(value)
        case {"class": name, "items": items}:
            return tuple.__new__(_class(name), [_value(part, objects) for part in items])
        case {"class": name, "number": number, "fields": parts}:
            made = _class(name)(**{key: _value(part, objects) for key, part in parts.items()})
            objects[number] = made
            return made
    raise ValueError(f"{_short(plain)} is no value of a decision")


def _class(name: str) -> type[Any]:
    """Return a class of core's data; a file from elsewhere can name no other one."""
    module, _, qualified = name.partition(":")
    found = getattr(importlib.import_module(module), qualified) if module.startswith("elastic_core.") else None
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, (Enum, tuple))):
        raise ValueError(f"{name!r} is no class of a decision")
    return found
