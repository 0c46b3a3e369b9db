"""A digest of text, without OpenSSL: ``hashlib`` loads it, which takes 3.5 MB of every agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

MODULES = ("_sha2", "_sha512", "hashlib")  # CPython's from 3.12 on, and before, as in ``random``; another Python's


def find_sha512(modules: Sequence[str]) -> Callable[[bytes], Any]:
    """Return the SHA-512 of the first module that has it."""
    for name in modules:
        with suppress(ImportError, AttributeError):
            found: Callable[[bytes], Any] = import_module(name).sha512
            return found
    raise ImportError("this Python has no SHA-512")


_sha512 = find_sha512(MODULES)  # now: later no descriptor may be left


def hex_digest(text: str, digits: int) -> str:
    """Return the first hex digits of the SHA-512 of a text, at most 128, which is the same on every host."""
    return str(_sha512(text.encode(errors="surrogateescape")).hexdigest()[:digits])
