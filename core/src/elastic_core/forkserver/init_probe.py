"""How a worker's agent learns that the process group is there, from a script that knows nothing of it.

torch measures how long ``init_process_group`` takes: its decorator makes a counter of that name, enters it, calls the
function, and leaves it. Here something is put in the place from which it takes the counter, and is gone from there once
the process group is there. No function of torch's is another one for that, and no frame of ours is in any traceback.
(There is a logger beside it, which would be less of a trespass, but it is told of calls that fail, and of no others.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

HOME, NAME = "torch.distributed.c10d_logger", "_WaitCounter"
"""Where it takes the counter from; in a torch that has no such name, nobody learns anything."""
CALL = "pytorch.wait_counter.c10d.init_process_group"


def watch(tell: Callable[[], object]) -> None:
    """Call ``tell`` once, as soon as a call of ``init_process_group`` has succeeded. Without torch nothing happens."""
    home = sys.modules.get(HOME)
    make = getattr(home, NAME, None)
    if make is None:
        return

    def over() -> None:
        setattr(home, NAME, make)
        tell()

    def instead(name: str) -> Any:
        return _Counter(make(name), over) if name == CALL else make(name)

    setattr(home, NAME, instead)


class _Counter:
    """torch's, and its guard; tells that the guard was left without an exception."""

    def __init__(self, counter: Any, over: Callable[[], None]) -> None:
        self._guard: Any = counter.guard()
        self._over = over

    def guard(self) -> _Counter:
        """Return what the call is made within."""
        return self

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._guard.__exit__(kind, error, at)
        if kind is None:
            self._over()
