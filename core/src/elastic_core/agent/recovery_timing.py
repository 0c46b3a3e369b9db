"""How long one interruption of training took on this node, and what the time went into."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.events import Event, Field, Level


@dataclass(slots=True)
class Recovery:
    """From the first trouble until the workers of the next round train. Seconds on the monotonic clock.

    What happens meanwhile overlaps: while the old workers are being stopped, the leader decides. So each part is told
    by when it was over, counted from the beginning.

    Attributes:
        began: When the worker ended that failed first; else when this node learned that the round is over.
        detected: When this node knew.
        decided: When it read of the next round.
        stopped: When no process of the old one was left.
        running: When the programs of all workers of the next one ran.
    """

    began: float
    detected: float
    decided: float | None = None
    stopped: float | None = None
    running: float | None = None

    def parts(self, **ends: float) -> tuple[dict[str, Field], str]:
        """Return the seconds until each part was over, and until ``ends``: for programs, and for people."""
        own = {"detected": self.detected, "decided": self.decided, "stopped": self.stopped, "running": self.running}
        took = {name: round(at - self.began, 6) for name, at in {**own, **ends}.items() if at is not None}
        told = ", ".join(f"{name} after {seconds:.3f}" for name, seconds in took.items())
        return {f"{name}_s": seconds for name, seconds in took.items()}, f"{told} s"


def recovered(number: int, recovery: Recovery) -> Event:
    """Return the workers of round ``number`` run."""
    fields, told = recovery.parts()
    return Event("recovered", f"round {number} runs: {told}", Level.DEBUG, {"round": number, **fields})


def restarted(number: int, recovery: Recovery, fresh: str, unlearned: int = 0) -> Event:
    """Return what the restart cost on this node until the programs of round ``number`` run.

    Args:
        number: The round's.
        recovery: The interruption that led to it.
        fresh: Why workers started fresh; '' where all were forked by the fork server.
        unlearned: How many modules a worker has imported that the fork server has neither imported nor tried to.
    """
    took = round((recovery.began if recovery.running is None else recovery.running) - recovery.began, 6)
    how = f"its workers import everything again ({fresh})" if fresh else "its workers started warm"
    if unlearned and not fresh:
        how += f", but import again {unlearned:,} module(s) that were not imported ahead"
    message = f"round {number} runs {took:.3f} s after the interruption, and {how}"
    fields: dict[str, Field] = {"round": number, "took_s": took, "warm": not fresh, "why": fresh}
    return Event("restarted", message, fields={**fields, "unlearned": unlearned})


def initialized(number: int, workers: int, took: float, recovery: Recovery | None, now: float) -> Event:
    """Every local worker of round ``number`` has reported that the process group is there.

    Args:
        number: The round's.
        workers: How many that are.
        took: Seconds since they were started.
        recovery: The interruption that led to the round, if one did.
        now: When that was.
    """
    parts, told = recovery.parts(initialized=now) if recovery is not None else ({}, f"after {took:.3f} s")
    fields: dict[str, Field] = {"round": number, "workers": workers, "took_s": took, **parts}
    return Event("initialized", f"the process group of round {number} is there: {told}", Level.DEBUG, fields)
