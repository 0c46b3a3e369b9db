"""A checker of linearizability: whether concurrent calls can be put in an order that explains what each has returned.

The algorithm is the just-in-time linearization of Gavin Lowe, "Testing for linearizability" (Concurrency and
Computation: Practice and Experience 29(4), 2017), which extends the search of Jeannette Wing and Chun Gong, "Testing
and verifying concurrent objects" (Journal of Parallel and Distributed Computing 17, 1993). The history is replayed in
the order of time, and calls are given places in the order only when one has returned and must have its own. All
configurations that are possible at an instant are kept in a set, so that none is explored twice. A history of several
objects is checked one object at a time, which decides the same (Maurice Herlihy and Jeannette Wing, "Linearizability",
ACM TOPLAS 12(3), 1990, theorem 1).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

State: TypeAlias = Hashable
Apply: TypeAlias = Callable[[Any], State]
"""The state of an object after a call, made from that before; :data:`IMPOSSIBLE` where the call has another result."""

Configuration: TypeAlias = tuple[State, frozenset[int]]
"""A state, and those calls that have taken effect and have not returned."""


class _Impossible:
    def __repr__(self) -> str:
        return "IMPOSSIBLE"


IMPOSSIBLE = _Impossible()  # a state that no call leads to


@dataclass(frozen=True, slots=True)
class Step:
    """A call, as one object sees it."""

    invoked: int  # when it began, in ns
    returned: int | None
    """When it returned, in ns; None if its outcome is unknown. Such a call may take effect at any time after it
    began, or never.
    """
    apply: Apply  # what it does
    text: str  # what it was, for people


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A call whose result nothing explains: the first in the order of returns."""

    step: Step  # the call
    states: list[State]  # the states that were possible just before it returned
    concurrent: list[Step]  # calls that may have taken effect by then, or may not


def contradiction(steps: Sequence[Step], initial: State) -> Contradiction | None:
    """Return the first call that no order explains; None for a history that is linearizable.

    An order explains the calls if each has the result that it would have if they were made one after the other, and if
    no call comes before one that had returned when it began. Calls of unknown outcome may be left out.
    """
    begins = ((step.invoked, False, number) for number, step in enumerate(steps))
    ends = ((step.returned, True, number) for number, step in enumerate(steps) if step.returned is not None)
    unknown = frozenset(number for number, step in enumerate(steps) if step.returned is None)
    pending: set[int] = set()
    configurations: set[Configuration] = {(initial, frozenset())}
    for _, has_returned, number in sorted([*begins, *ends]):  # at one instant calls begin before others return
        if not has_returned:
            pending.add(number)
            continue
        explained = _linearized(steps, configurations, pending, number)
        pending.remove(number)
        if not explained:
            states = list(dict.fromkeys(state for state, _ in configurations))
            return Contradiction(steps[number], states, [steps[other] for other in sorted(pending)])
        configurations = _without_dominated(explained, unknown)
    return None


def _linearized(
    steps: Sequence[Step], configurations: Iterable[Configuration], pending: set[int], number: int
) -> set[Configuration]:
    """Return the configurations after a call has taken effect, perhaps after other pending ones; without that call."""
    explored, to_explore = set(configurations), list(configurations)
    found: set[Configuration] = set()
    while to_explore:
        state, done = to_explore.pop()
        if number in done:
            found.add((state, done - {number}))
            continue
        for other in pending - done:
            after = steps[other].apply(state)
            if after is not IMPOSSIBLE and (reached := (after, done | {other})) not in explored:
                explored.add(reached)
                to_explore.append(reached)
    return found


def _without_dominated(configurations: Iterable[Configuration], unknown: frozenset[int]) -> set[Configuration]:
    """Leave out what differs from another only by more calls of unknown outcome that have taken effect.

    Those need never take effect, so all that can follow can follow in the other configuration as well.
    """
    kept: dict[Configuration, list[frozenset[int]]] = {}
    for state, done in sorted(configurations, key=lambda configuration: len(configuration[1])):
        least = kept.setdefault((state, done - unknown), [])
        if not any(other <= done & unknown for other in least):
            least.append(done & unknown)
    return {(state, done | used) for (state, done), least in kept.items() for used in least}
