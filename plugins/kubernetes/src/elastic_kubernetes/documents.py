"""YAML as Kubernetes takes it: several documents in a file, each key once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable
from typing import Any

import yaml

from elastic_core.errors import UsageError

MOST_VALUES = 100_000  # of a document, each alias counted as what it stands for; a manifest has hundreds
_WORD = re.compile(r"(?:-{0,2}|[./]{0,2})[A-Za-z_$][\w./:=()$-]*")
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", ".inf", "-.inf", ".nan"}
_STYLE: dict[str, Any] = {"sort_keys": False, "default_flow_style": False, "width": 120, "allow_unicode": True}


class _Loader(yaml.SafeLoader):
    """PyYAML's, which refuses a key that is there twice and too many aliases, as the API server does."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _expanded(node, {}) > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                problem=f"the document has more than {MOST_VALUES:,} values with its aliases (*name) written out",
                problem_mark=node.start_mark,
            )
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if (name := self.construct_object(key, deep=True)) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {name!r} is there twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node has once its aliases are written out; one within itself counts once."""
    if id(node) not in known:
        known[id(node)] = 1
        values: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.SequenceNode):
            values = node.value
        elif isinstance(node, yaml.MappingNode):
            values = itertools.chain.from_iterable(node.value)
        known[id(node)] += sum(_expanded(value, known) for value in values)
    return known[id(node)]


class _Dumper(yaml.SafeDumper):
    """PyYAML's, without anchors: a value that is there twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.Node:
        """Quote each text that is not plainly a word: readers of YAML differ in what they take for another type.

        kubectl takes ``1e-4`` for a number, and PyYAML does not; ``y`` is true by YAML 1.1 and for kubectl.
        """
        style = None
        if not _WORD.fullmatch(text) or text.lower() in _NO_TEXT:
            style = "'" if text.isprintable() and len(text) < _STYLE["width"] else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def read(text: str, source: str) -> list[object]:
    """Return the documents of a file that are not empty; raise UsageError, which says where, if it is not YAML."""
    try:
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split()) or type(exc).__name__
        raise UsageError(f"{source}{where}: this is not YAML: {problem}.") from exc


def write(documents: Iterable[object]) -> str:
    """Return the documents as one text of YAML; raise UsageError if a value contains itself, by an alias."""
    try:
        return "---\n".join(yaml.dump(document, Dumper=_Dumper, **_STYLE) for document in documents)
    except RecursionError:
        raise UsageError(
            "A value of the ElasticJob contains itself.", hint="Look at its aliases, as in `*name`."
        ) from None
