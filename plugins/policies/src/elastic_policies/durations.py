"""The values of policies as people write them: durations (``90``, ``30s``, ``10m``, ``1h``, ``2d``) and counts."""

from __future__ import annotations

import re

from elastic_core.config.parse import Wrong

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)")


def split_value(text: str, separator: str, form: str) -> tuple[str, str]:
    """Return the parts of a text on both sides of ``separator``; raise Wrong, with the ``form``, if it has none."""
    before, found, after = text.partition(separator)
    if not found:
        raise Wrong(f"is not of the form {form}")
    return before, after


def parse_duration(text: str, *, most: float) -> float:
    """Return the seconds that ``text`` means; raise Wrong if it is no duration, or not between 0 and ``most`` s."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise Wrong(f"has {text!r} where a duration such as 30s, 10m or 1h is wanted")
    seconds = float(match[1]) * UNITS[match[2] or "s"]
    if not 0 < seconds <= most:
        raise Wrong(f"has {text!r}, which is not between 0 and {format_duration(most)}")
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest text that means so many seconds."""
    for unit in "dhm":
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def parse_count(text: str, *, least: int, most: int) -> int:
    """Return the number that ``text`` means; raise Wrong if it is not a whole number from ``least`` to ``most``."""
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise Wrong(f"has {text!r} where a whole number from {least} to {most} is wanted")
    return int(text)
