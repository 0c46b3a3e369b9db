"""A digest of text, without OpenSSL: ``hashlib`` loads it, which takes 3.5 MB of every agent.

It is an approved hash: a host in FIPS mode has no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha512
else:
    try:  # now: later no descriptor may be left
        from _sha2 import sha512  # CPython's from 3.12 on
    except ImportError:
        try:
            from _sha512 import sha512  # and before
        except ImportError:
            from hashlib import sha512


def hex_digest(text: str, digits: int) -> str:
    """Return the first hex digits of the SHA-512 of a text, at most 128, which is the same on every host."""
    return sha512(text.encode(errors="surrogateescape")).hexdigest()[:digits]
