"""When a round makes room for waiting nodes: the rule of resizes (L13), which counts the work that they throw away.

A script that takes no notices saves nothing when it is stopped, so a resize repeats all work since its last checkpoint
on every node. :func:`seconds_until_resize` weighs that work against what the waiting nodes would add until they get
their places anyway, after a loss or a failure. ``docs/protocol.md`` has the rule's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.protocol.entries import Round
from elastic_core.protocol.graceful_stop import can_take_notices
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.limits import MAX_CHANGES

RESTART_SECONDS = 30.0  # how long workers take until they train again, assumed: imports, communicators, a checkpoint
SETTLE_SECONDS = 2.0  # how old a checkpoint is when it counts: other ranks may still be writing their part of it
ASSUMED_SECONDS = 300.0  # the work at stake in a script whose checkpoints are not known, if the round is as old
ANNOUNCE_SECONDS = 5.0  # how long a node has waited when users are told why
MAX_WAIT_FACTOR = 30.0  # a node waits for a place for at most this many times ``resize_wait``
PRIOR_CHANGES, PRIOR_SECONDS = 0.5, 1800.0
"""What the rule assumes before it has seen changes: half of one in half an hour. Counts less as the run grows older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCase:
    """What the rule decides from. Times are in seconds."""

    nodes: int  # of the live round
    waiting: int  # nodes that would get a place
    waited: float  # since the first of them could have had its place
    round_age: float
    takes_notices: bool = False  # whether the workers of all nodes save when they are told to stop
    at_stake: float | None = None  # since the script's last checkpoint, or the round's start; None if not known
    checkpoint_interval: float = 0.0  # between the script's last two checkpoints; 0 if not known
    pause: float = RESTART_SECONDS  # from the stop of the workers until they train again
    change_interval: float  # expected until a loss or a failure restarts the round anyway
    resize_wait: float  # ``--rdzv_conf resize_wait``


def seconds_until_resize(case: ResizeCase) -> float:
    """Return for how long the resize is put off, if nothing changes until then; 0 to resize now."""
    longest = MAX_WAIT_FACTOR * case.resize_wait
    if case.takes_notices or case.waited >= longest:
        return 0.0
    if case.at_stake is None:
        worth_it = _is_worth_it(case, min(case.round_age, ASSUMED_SECONDS))
        company = case.resize_wait - case.waited
        if company <= 0:
            return 0.0 if worth_it else longest - case.waited
        # All work of a young round is at stake, and that is little.
        return 0.0 if worth_it and case.round_age <= case.resize_wait else company
    # A new checkpoint settles first; what that costs is little, and part of every resize.
    if not _is_worth_it(case, max(0.0, case.at_stake - SETTLE_SECONDS)):
        return longest - case.waited
    return max(0.0, SETTLE_SECONDS - case.at_stake)


def _is_worth_it(case: ResizeCase, at_stake: float) -> bool:
    """Whether a resize gains more node-seconds than it costs, compared with a resize after the next checkpoint.

    The waiting nodes work for the time until that checkpoint, or until a loss or a failure if one comes first: they get
    their places then anyway. All nodes repeat the work at stake. The pause costs nothing extra where the later resize
    would have had one too. Losses are taken for a Poisson process.
    """
    rate = 1 / case.change_interval
    rest = max(0.0, case.checkpoint_interval - at_stake) if case.checkpoint_interval else math.inf
    restarts_before = 1 - math.exp(-rate * rest)  # the probability of a loss or a failure before the next checkpoint
    gained = case.waiting * restarts_before / rate
    return gained > case.nodes * (at_stake + case.pause * restarts_before)


def change_interval(changes: Sequence[float], age: float) -> float:
    """Return the expected seconds to the next loss or failure, from the run's ages at the newest ones and its age now.

    Only the newest ``MAX_CHANGES`` are known; if there are as many, the rate is that since the oldest of them.
    """
    since = changes[0] if len(changes) == MAX_CHANGES else 0.0
    return (max(0.0, age - since) + PRIOR_SECONDS) / (len(changes) + PRIOR_CHANGES)


def next_resize(view: LeaderView, current: Round, *, resize_cost: float) -> tuple[float, str]:
    """Return when the rule lets the live round be resized, or is to be asked again; and why not now, for users.

    Args:
        view: What the leader knows. A node waits, and there is room.
        current: The live round.
        resize_cost: What stopping the workers took at the last resize, in seconds; 0 if that is not known.
    """
    case = _case(view, current, resize_cost)
    seconds = seconds_until_resize(case)
    return view.now + seconds, _describe_wait(view, case) if seconds and case.waited >= ANNOUNCE_SECONDS else ""


def _describe_wait(view: LeaderView, case: ResizeCase) -> str:
    """Say why waiting nodes get no place yet, and until when."""
    waiting = view.newcomers()[: case.waiting]
    who, longest = view.describe_nodes(node.node_id for node in waiting), MAX_WAIT_FACTOR * case.resize_wait
    if case.at_stake is None:
        lost = "their work since their last checkpoint, which is not known"
        soonest = max(0.0, case.resize_wait - case.waited)
        until = f"with the next restart, else after {soonest:.0f} to {longest - case.waited:.0f} s"
    else:
        lost = f"{case.at_stake:.0f} s of their work"
        until = f"after the next checkpoint, with the next restart, or within {longest - case.waited:.0f} s"
    return (
        f"{who} waits for a place: to stop the {case.nodes} node(s) of the round would lose {lost}. "
        f"It gets one {until} (--rdzv_conf resize_wait={case.resize_wait:g})"
    )


def _case(view: LeaderView, current: Round, resize_cost: float) -> ResizeCase:
    began_at, places = view.ledger.round_at, view.places(current)
    # Before so many nodes had come, none of them could have had a place.
    needed = (view.agreement.next_size(len(current.members)) or 0) - len(current.members)
    arrivals = sorted(node.arrived_at for node in view.newcomers())
    at_stake, interval = _work_at_stake(view, current)
    return ResizeCase(
        nodes=len(current.members),
        waiting=places,
        waited=view.now - max(began_at, arrivals[:needed][-1]),
        round_age=view.now - began_at,
        takes_notices=can_take_notices(view, current),
        at_stake=at_stake,
        checkpoint_interval=interval,
        pause=resize_cost + RESTART_SECONDS,
        change_interval=change_interval(view.ledger.counters.changes, view.age),
        resize_wait=view.timing.resize_wait,
    )


def _work_at_stake(view: LeaderView, current: Round) -> tuple[float | None, float]:
    """Return the seconds of work since the last checkpoint, None if not known, and the interval of checkpoints.

    Often only rank 0 saves, and only its node sees that. If several nodes have saved in this round, their parts make
    one checkpoint, so the oldest counts.
    """
    rows = [node.row for node in view.node_views(current) if node.row.round == current.number]
    seen = [row.checkpoint for row in rows if row.checkpoint is not None]
    if not seen:
        return None, 0.0
    saved = [one.at for one in seen if one.saved]
    at = min(saved or [one.at for one in seen])
    return max(0.0, view.age - at), max(one.interval for one in seen)
