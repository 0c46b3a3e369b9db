"""Errors and events say what happened in words of the field; words of Elastic's own stay in code and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import elastic_core

ROOT = Path(elastic_core.__file__).parent
INSIDE = re.compile(
    r"\b(slots?|leaders?|fork servers?|starters?|ledgers?|rosters?|wardens?|fences?|fenced|fd stores?|leader views?|"
    r"node views?|chairs?|seats?|templates?)\b",
    re.IGNORECASE,
)
NOT_SHOWN = {
    "\nimport ": "a program",
    "no heartbeat from the leader, ": "DEBUG, why another node leads",
    "the leader, ": "DEBUG, why another node leads",
    "the warden sent ": "an assertion",
}
"""Beginnings of texts that are hidden without ``-v``, and why."""


def texts(source: str) -> Iterator[str]:
    """Every text of several words in a module but its docstrings, with … for what is filled in."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not is_table(node)]
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(statement.value) for statement in statements}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        found = ""
        if isinstance(node, ast.JoinedStr):
            found = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docstrings | parts):
            found = node.value
        if found.count(" ") > 1 and " | " not in found:  # not a union of types
            yield found


def is_table(node: ast.stmt) -> bool:
    """Return whether a statement is a table of public names, or of public modules, which authors of plugins read."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"NAMES", "PUBLIC"}


def test_no_text_for_users_has_a_word_of_elastics_own() -> None:
    found = said_in(ROOT.rglob("*.py"))
    assert [text for text in found if not text.startswith(tuple(NOT_SHOWN))] == []


def test_an_exemption_has_something_to_exempt() -> None:
    found = said_in(ROOT.rglob("*.py"))
    assert [start for start in NOT_SHOWN if not any(text.startswith(start) for text in found)] == []


def said_in(paths: Iterable[Path]) -> list[str]:
    """The texts of these modules with a word of Elastic's own."""
    return [text for path in paths for text in texts(path.read_text(encoding="utf-8")) if INSIDE.search(text)]


def test_a_word_in_a_message_is_noticed_and_one_in_a_docstring_is_not() -> None:
    source = 'def f(n):\n    """The leader of it all."""\n    return f"the leader is {n}" + "node" + "a slot is free"\n'
    assert sorted(texts(source)) == ["a slot is free", "the leader is …"]
