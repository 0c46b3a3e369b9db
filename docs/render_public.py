"""Writes ``docs/reference/public_modules.md`` and the stubs of public packages, from ``PUBLIC`` and tables ``NAMES``.

``python docs/render_public.py`` does it. A stub (``__init__.pyi``) tells type checkers the names of a package.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import elastic_core

PAGE = Path(__file__).parent / "reference" / "public_modules.md"
PREFACE = """\
# Public modules

A plugin imports these modules of core, and no other; of a package, the names that its table `NAMES` lists.
Names and meanings change only with the major version of the hook specs.

| module | subject |
|---|---|"""
OPEN = ("elastic_core", "elastic_core.agent", "elastic_core.rendezvous")  # to which elastic-torchrun adds names
ROOT = (
    "def names_of(package: str, names: Mapping[str, str], *, torchs: bool = False) -> Callable[[str], Any]: ...",
    "",
    "PUBLIC: dict[str, str]",
    "_SUBMODULES: tuple[str, ...]",
)


def stubs() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each stub."""
    for package in elastic_core.PUBLIC:
        module = import_module(package)
        if not hasattr(module, "NAMES"):
            continue
        lines = ["# Made by docs/render_public.py.", ""]
        for home in sorted(module.NAMES):
            named = ", ".join(f"{name} as {name}" for name in sorted(module.NAMES[home].split()))
            lines.append(f"from elastic_core.{home} import {named}")
        lines += ["", "NAMES: dict[str, str]"]
        if package in OPEN:
            lines[1:1] = ["from typing import Any"]
            lines += ["", "def __getattr__(name: str) -> Any: ..."]
        if module is elastic_core:
            lines[1:1] = ["from collections.abc import Callable, Mapping"]
            lines += ROOT
        yield Path(str(module.__file__)).with_suffix(".pyi"), "\n".join([*lines, ""])


def page() -> str:
    """Return the whole page."""
    rows = (f"| `{module}` | {subject.replace('``', '`')} |" for module, subject in elastic_core.PUBLIC.items())
    return "\n".join([PREFACE, *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for path, text in stubs():
        path.write_text(text, encoding="utf-8")
