"""When a round makes room for waiting nodes: the rule of resizes (L13).

A script that takes no notices saves nothing when it is stopped, so a resize repeats all work since its last checkpoint
on every node. The rule waits for a moment at which that is little, and never for longer than a limit.
``docs/internals/protocol.md`` has the rule's table, and ``docs/internals/simulator.md`` its results on traces of spot
machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.events import describe_duration
from elastic_core.protocol.entries import Counters, Round
from elastic_core.protocol.graceful_stop import can_take_notices
from elastic_core.protocol.leader_view import LeaderView

SETTLE_SECONDS = 2.0  # how old a checkpoint is when it counts: other ranks may still be writing their part of it
FRESH_SECONDS = 10.0  # how old it is at most, so that little work is lost
ANNOUNCE_SECONDS = 5.0  # how long a node has waited when users are told why
MAX_WAIT_FACTOR = 30.0  # a node waits for a place for at most this many times ``resize_wait``
OFTEN = 2  # losses of hosts and failures within an hour, after which the next one is worth waiting for
OFTEN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCase:
    """The facts from which the rule decides. Times are in seconds."""

    waited: float  # since the first of the nodes that would get a place could have had it
    round_age: float
    takes_notices: bool = False  # whether the workers of all nodes save when they are told to stop
    at_stake: float | None = None  # since the script's last checkpoint, or the round's start; None if not known
    restarts_often: bool = False  # whether a loss or a failure is likely to restart the round soon
    resize_wait: float  # ``--rdzv_conf resize_wait``


def seconds_until_resize(case: ResizeCase) -> float:
    """Return for how long the resize is put off, if nothing changes until then; 0 to resize now."""
    longest = MAX_WAIT_FACTOR * case.resize_wait
    if case.takes_notices or case.waited >= longest:
        return 0.0
    if case.at_stake is not None:
        fresh = case.at_stake <= FRESH_SECONDS
        return max(0.0, SETTLE_SECONDS - case.at_stake) if fresh else longest - case.waited
    if case.round_age <= case.resize_wait:
        return 0.0  # all work of a young round is at stake, and that is little
    return max(0.0, (longest if case.restarts_often else case.resize_wait) - case.waited)


def restarts_often(counters: Counters, age: float) -> bool:
    """Return whether hosts were lost or workers failed ``OFTEN`` times within the last hour of a run of this age."""
    ages = [lost.age for lost in counters.losses.values()] + [failed.age for failed in counters.failures]
    return sum(age - one < OFTEN_SECONDS for one in ages) >= OFTEN


def next_resize(view: LeaderView, current: Round) -> tuple[float, str]:
    """Return when the rule lets the live round be resized, or is to be asked again; and why not now, for users.

    Args:
        view: What the leader knows. A node waits, and there is room.
    """
    case = _case(view, current)
    seconds = seconds_until_resize(case)
    is_told = seconds and case.waited >= ANNOUNCE_SECONDS
    return view.now + seconds, _describe_wait(view, current, case) if is_told else ""


def next_admission_at(view: LeaderView) -> float | None:
    """Return when the next waiting node's host is admitted again (rule L12); None if none waits for that."""
    waiting = {node.row.info.host_id for node in view.waiting_nodes()}
    excluded = view.ledger.counters.excluded_at(view.age)
    ends = [until for host, until in excluded.items() if until is not None and host in waiting]
    return view.now + min(ends) - view.age if ends else None


def _describe_wait(view: LeaderView, current: Round, case: ResizeCase) -> str:
    """Return when waiting nodes get a place, and what they wait for."""
    who = view.describe_nodes(node.node_id for node in view.newcomers()[: view.places(current)])
    longest = describe_duration(MAX_WAIT_FACTOR * case.resize_wait - case.waited)
    if case.at_stake is not None:
        when, lost = f"at the next checkpoint or restart, in {longest} at most", f"{case.at_stake:.0f} s of work"
    elif case.restarts_often:
        when, lost = f"with the next restart, in {longest} at most", "the work since the last checkpoint"
    else:
        when = f"in about {case.resize_wait - case.waited:.0f} s, or with the next restart"
        lost = "the work since the last checkpoint"
    return (
        f"{who} joins {when}: to stop the workers of {len(current.members)} node(s) now would lose {lost}. "
        f"Scripts that call elastic.should_checkpoint() make room at once (--rdzv_conf "
        f"resize_wait={case.resize_wait:g})"
    )


def _case(view: LeaderView, current: Round) -> ResizeCase:
    began_at = view.ledger.round_at
    # Before so many nodes had come, none of them could have had a place.
    needed = (view.agreement.next_size(len(current.members)) or 0) - len(current.members)
    arrivals = sorted(node.arrived_at for node in view.newcomers())
    return ResizeCase(
        waited=view.now - max(began_at, arrivals[:needed][-1]),
        round_age=view.now - began_at,
        takes_notices=can_take_notices(view, current),
        at_stake=_work_at_stake(view, current),
        restarts_often=restarts_often(view.ledger.counters, view.age),
        resize_wait=view.timing.resize_wait,
    )


def _work_at_stake(view: LeaderView, current: Round) -> float | None:
    """Return the seconds of work since the last checkpoint; None if no node notices checkpoints.

    Often only rank 0 saves, and only its node sees that. If several nodes have saved in this round, their parts make
    one checkpoint, so the oldest counts.
    """
    rows = [node.row for node in view.node_views(current) if node.row.round == current.number]
    seen = [row.checkpoint for row in rows if row.checkpoint is not None]
    at = min([one.at for one in seen if one.saved] or [one.at for one in seen], default=None)
    return None if at is None else max(0.0, view.age - at)
