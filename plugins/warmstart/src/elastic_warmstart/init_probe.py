"""Notices that the process group is ready, in a script that knows nothing of it.

torch measures ``init_process_group``: its decorator makes a counter, enters it, calls the function, and leaves it. This
module replaces the counter's class until the process group is ready. So no function of torch's is replaced, and no
frame of ours is in a traceback. (The logger beside it hears only of calls that fail.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

HOME, NAME = "torch.distributed.c10d_logger", "_WaitCounter"
"""The module and the name of the counter's class, as the decorator finds it. A torch without it is not watched."""
CALL = "pytorch.wait_counter.c10d.init_process_group"


def watch(tell: Callable[[], object]) -> None:
    """Call ``tell`` once, as soon as a call of ``init_process_group`` has succeeded. Without torch nothing happens."""
    home = sys.modules.get(HOME)
    make = getattr(home, NAME, None)
    if make is None:
        return

    def on_success() -> None:
        setattr(home, NAME, make)
        tell()

    def make_watched(name: str) -> Any:
        return _Counter(make(name), on_success) if name == CALL else make(name)

    setattr(home, NAME, make_watched)


class _Counter:
    """torch's counter and its guard; calls ``on_success`` when the guard is left without an exception."""

    def __init__(self, counter: Any, on_success: Callable[[], None]) -> None:
        self._guard: Any = counter.guard()
        self._on_success = on_success

    def guard(self) -> _Counter:
        """Return the context manager of the call."""
        return self

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._guard.__exit__(kind, error, at)
        if kind is None:
            self._on_success()
