"""A digest of text, without OpenSSL: ``hashlib`` loads it, which takes 3.5 MB of every agent."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # now: later no descriptor may be left
except ImportError:  # not CPython
    from hashlib import blake2b


def hex_digest(text: str, digits: int) -> str:
    """Return the first hex digits of the BLAKE2b of a text, at most 128, which is the same on every host."""
    return blake2b(text.encode(errors="surrogateescape")).hexdigest()[:digits]
