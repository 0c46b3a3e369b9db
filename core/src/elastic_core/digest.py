"""A digest of text, without OpenSSL: ``hashlib`` loads it, which takes 3.5 MB of every agent."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # the module behind hashlib's
except ImportError:  # another Python than CPython
    from hashlib import blake2b


def hex_digest(text: str, digits: int) -> str:
    """Return so many hex digits, an even number up to 128, that differ where two texts differ."""
    return blake2b(text.encode(errors="surrogateescape"), digest_size=digits // 2).hexdigest()
