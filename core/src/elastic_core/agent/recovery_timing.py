"""How long one interruption of training took on this node, and what the time went into."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from elastic_core.events import Event, Field, Level


@dataclass(slots=True)
class Recovery:
    """From the first trouble until the workers of the next round train: instants of the monotonic clock, in seconds.

    The parts overlap, since the leader decides while the old workers are being stopped. So each part is reported by its
    end, counted from the beginning.
    """

    began: float  # when the worker ended that failed first; else when this node learned that the round is over
    detected: float  # when this node knew
    decided: float | None = None  # when it read of the next round
    stopped: float | None = None  # when no process of the old round was left
    running: float | None = None  # when the programs of all workers of the next round ran

    def parts(self, **ends: float) -> tuple[dict[str, Field], str]:
        """Return the seconds until the end of each part, and until ``ends``: for programs, and for people."""
        instants = {**asdict(self), **ends}
        took = {name: round(at - instants["began"], 6) for name, at in instants.items() if at is not None}
        del took["began"]
        told = ", ".join(f"{name} after {seconds:.3f}" for name, seconds in took.items())
        return {f"{name}_s": seconds for name, seconds in took.items()}, f"{told} s"


def recovered(number: int, recovery: Recovery) -> Event:
    """Return the event that the workers of round ``number`` run."""
    fields, told = recovery.parts()
    return Event("recovered", f"round {number} runs: {told}", Level.DEBUG, {"round": number, **fields})


def restarted(number: int, recovery: Recovery, fresh: str, unlearned: int = 0) -> Event:
    """Return what the restart cost on this node until the programs of round ``number`` run.

    Args:
        recovery: The interruption that led to it.
        fresh: Why workers started fresh; '' if the starter forked all of them.
        unlearned: How many modules a worker imports itself that the starter has not imported.
    """
    took = round((recovery.began if recovery.running is None else recovery.running) - recovery.began, 6)
    how = f"its workers import all modules themselves ({fresh})" if fresh else "its workers started warm"
    if unlearned and not fresh:
        how += f", and import {unlearned:,} module(s) themselves"
    message = f"round {number} runs {took:.3f} s after the interruption, and {how}"
    fields: dict[str, Field] = {"round": number, "took_s": took, "warm": not fresh, "why": fresh}
    return Event("restarted", message, fields={**fields, "unlearned": unlearned})


def initialized(number: int, workers: int, took: float, recovery: Recovery | None, now: float) -> Event:
    """Return the event that all local workers of round ``number`` are in the process group.

    They were started ``took`` seconds ago; ``recovery`` is the interruption that led to the round, if one did.
    """
    parts, told = recovery.parts(initialized=now) if recovery is not None else ({}, f"after {took:.3f} s")
    fields: dict[str, Field] = {"round": number, "workers": workers, "took_s": took, **parts}
    return Event("initialized", f"the process group of round {number} is there: {told}", Level.DEBUG, fields)
