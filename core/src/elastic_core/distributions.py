"""The distributions of this project, installed or not, out of ``distributions.toml``; errors and help read it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".toml")


@functools.cache
def distributions() -> Mapping[str, Mapping[str, Any]]:
    """Return what each distribution brings, by its name; takes 10 ms."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    found: Mapping[str, Mapping[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return found


def brought(kind: str) -> dict[str, str]:
    """Return the distribution that brings each name of one kind, a key of the file such as ``commands``."""
    return {name: distribution for distribution, brings in distributions().items() for name in brings.get(kind, ())}


def described(kind: str) -> dict[str, str]:
    """Return the text that the file has for each name of one kind."""
    return {name: text for brings in distributions().values() for name, text in brings.get(kind, {}).items()}


def backend_of(form: str) -> str:
    """Return the backend that an endpoint of this form means where none is named; takes microseconds."""
    [name] = re.findall(rf'^rendezvous\.(\S+) = "{re.escape(form)}"$', FILE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(name)


def may_bring(names: Iterable[str]) -> bool:
    """Return whether the file has one of these texts, in quotes; takes microseconds."""
    text = FILE.read_text(encoding="utf-8")
    return any(f'"{name}"' in text for name in names)
