"""Writes ``docs/reference/plugin_hooks.md`` from the docstrings of ``elastic_core.hookspecs``, the only source.

    python docs/render_hooks.py

A test compares the page with what this makes of the code.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elastic_core import hookspecs
from elastic_core.plugins.manager import HOOKS, OBSERVING

PAGE = Path(__file__).parent / "reference" / "plugin_hooks.md"
PREFACE = """\
# The hooks

Every hook that a plugin can implement, with its contract. [Writing a plugin](../authors/writing_a_plugin.md) shows how
they are used, and has a table of their threads and time limits.

This page is made from the docstrings in [`elastic_core.hookspecs`](../../core/src/elastic_core/hookspecs.py) by
`python docs/render_hooks.py`; change them there. It describes version {major}.{minor} of the hook specs. An
implementation may leave out arguments that it does not need. Unless a contract says otherwise, one that raises fails
the run: an `ElasticError` as it is, any other error as a `PluginError` that names the plugin, with exit code 2.
"""
FAMILY = re.compile(r"# (\d+\. .+?) -+")
DEFINITION = re.compile(r"def (elastic_\w+)\(")
ROLE = re.compile(r":\w+:`(?:~[\w.]+\.|([\w.]+))?(\w+)`")
RAISED = re.compile(r"(?<!\S)(\w+Error): ")


def page() -> str:
    """Return the whole page."""
    major, minor = hookspecs.HOOKSPEC_VERSION
    return "\n".join([PREFACE.format(major=major, minor=minor), *_families()])


def _families() -> Iterator[str]:
    """Yield the families and their hooks, in the order of the source."""
    for line in inspect.getsource(hookspecs).splitlines():
        if (family := FAMILY.fullmatch(line)) is not None:
            yield f"## {family[1]}\n"
        elif (definition := DEFINITION.match(line)) is not None:
            yield _hook(definition[1], HOOKS[definition[1]])


def _hook(name: str, spec: Callable[..., Any]) -> str:
    declared = f"def {name}{inspect.signature(spec)}".replace("'", "")
    return "\n".join(
        [
            f"### `{name}`\n",
            f"```python\n{declared}\n```\n",
            f"{markdown(inspect.getdoc(spec) or '')}\n",
            f"*{_asked(name, spec)}*{_types(declared)}\n",
        ]
    )


def _asked(name: str, spec: Callable[..., Any]) -> str:
    if name in OBSERVING:
        return "Every plugin that implements it is told; Elastic does not wait for any."
    if getattr(spec, f"{hookspecs.PROJECT}_spec")["firstresult"]:
        return "The first answer that is not `None` counts."
    return "Every plugin that implements it is asked."


def _types(declared: str) -> str:
    """Return the page that explains the types of a signature."""
    modules = dict(_imported())
    found = {name: modules[name] for name in re.findall(r"\w+", declared) if name in modules}
    if not found:
        return ""
    links = (f"[`{name}`](../../core/src/{module.replace('.', '/')}.py)" for name, module in found.items())
    return f" Types: {', '.join(links)}."


def _imported() -> Iterator[tuple[str, str]]:
    """Yield the names of ours that ``hookspecs`` imports for its signatures, each with its module."""
    for line in inspect.getsource(hookspecs).splitlines():
        if (found := re.fullmatch(r" +from (elastic_core[\w.]*) import (.+)", line)) is not None:
            yield from ((name, found[1]) for name in found[2].split(", "))


def markdown(docstring: str) -> str:
    """Return a docstring with its roles, literals and list of errors spelled as Markdown."""
    text, _, raises = docstring.partition("\n\nRaises:\n")
    if raises:
        facts = " ".join(textwrap.dedent(raises).split())
        text += "\n\nRaises:\n" + RAISED.sub(r"\n- `\1`: ", facts).replace(" \n", "\n")
    return ROLE.sub(lambda role: f"`{role[1] or ''}{role[2]}`", text).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
