"""The messages on stderr of torchrun's agent, which has no observers of ours."""

from __future__ import annotations

import sys

from elastic_core.events import Event, Level


def say(event: Event) -> None:
    """Print what needs a person's attention, and when it is over."""
    if event.level >= Level.WARNING or event.name == "store_back":
        print(f"[elastic] {event.message}", file=sys.stderr, flush=True)
