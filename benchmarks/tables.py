"""Numbers as people read them: medians with their spread, ratios, tables, and a page's written section."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Samples: TypeAlias = "Sequence[float | None]"
"""One number for each run; None where what was waited for never came."""
NOTHING = "-"
NEVER = "never"


def median(samples: Samples) -> float:
    """Return the median, where never is longer than anything; infinite if that is the median, or nothing was
    measured.
    """
    if not samples:
        return math.inf
    # median_high: halfway between a time and never there is nothing.
    return statistics.median_high([math.inf if sample is None else sample for sample in samples])


def seconds(value: float) -> str:
    """Return a duration, in a unit that shows about three digits."""
    if value == math.inf:
        return NEVER
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"


def megabytes(value: float) -> str:
    """Bytes, in units of 10^6."""
    return NEVER if value == math.inf else f"{value / 1e6:.1f} MB"


def per_hour(value: float) -> str:
    """CPU seconds per hour."""
    return NEVER if value == math.inf else f"{value:.2f} s/h"


def cell(samples: Samples, show: Callable[[float], str] = seconds, runs: int = 0) -> str:
    """Return the median with its spread, as ``1.71 s (1.52 s..2.50 s)``.

    Runs in which it never came are counted apart, and so are all where there were fewer than ``runs``.
    """
    if not samples:
        return NOTHING
    came = [sample for sample in samples if sample is not None]
    nevers = len(samples) - len(came)
    if not came:
        return NEVER
    text = f"{show(median(samples))} ({show(min(came))}..{show(max(came))})"
    if nevers:
        return f"{text}; {nevers} of {len(samples)} {NEVER}"
    times = "1 run" if len(samples) == 1 else f"{len(samples)} runs"
    return f"{text}; {times}" if len(samples) < runs else text


def ratio(part: float, whole: float) -> str:
    """Return the ratio of ``part`` to ``whole``, as ``1/15.2``, or ``1.3`` where it is the longer one."""
    if math.isinf(part) or math.isinf(whole):
        return NOTHING
    return f"1/{whole / part:.1f}" if part < whole else f"{part / whole:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table's lines."""
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]


def figures(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    measured: Mapping[str, Mapping[str, Samples]],
    show: Callable[[float], str] = seconds,
    runs: int = 0,
) -> list[str]:
    """Return a table of medians: ``measured`` by row and column. Rows of which nothing was measured are left out, and
    so is an empty table.
    """
    lines = [
        [row, *(cell(measured[row].get(name, ()), show, runs) for name in columns)] for row in rows if row in measured
    ]
    return table([title, *columns], lines) if lines else []


def paragraphs(*blocks: Sequence[str]) -> list[str]:
    """Blocks of lines with an empty one between; blocks without lines are left out."""
    return [line for block in blocks if block for line in ("", *block)][1:]


def replaced(page: str, begin: str, end: str, section: Sequence[str]) -> str:
    """Return the page with these lines between its marks.

    Raises:
        ValueError: It does not have each mark once, in this order.
    """
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last) or begin in rest or end in before + after:
        raise ValueError(f"the page does not have {begin!r} and then {end!r} once each")
    return "\n".join([before + begin, "", *section, "", end + after])
