"""Errors of foreign handlers, and the switch of torch's by which they share their store with workers."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from elastic_core.errors import (
    ElasticError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

SHARE_SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class HandlerError(RendezvousError):
    """An error of a handler that ends the agent, although the session retries errors of its ``cause``'s class."""

    def __init__(self, cause: ElasticError) -> None:
        super().__init__(cause.message, hint=cause.hint)
        self.cause = cause

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # an attribute of other errors
        """The exit code of the cause."""
        return self.cause.exit_code


@contextmanager
def without_shared_store() -> Iterator[None]:
    """Set the switch by which torch's handlers do not share their store with the workers, unless the user has set it.

    A handler that shares the store does not tell a new node where it is, and the job ends when a node joins.
    """
    before = os.environ.get(SHARE_SWITCH)
    os.environ.setdefault(SHARE_SWITCH, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[SHARE_SWITCH]


def translate_error(error: BaseException, what: str) -> ElasticError:
    """Return our error for one of a handler, after ``what`` failed: torch's classes have the names of ours."""
    if isinstance(error, ElasticError):
        return error
    said = f"{what[0].upper()}{what[1:]}: {type(error).__name__}: {error}"
    if error.__cause__ is not None:
        said += f" ({error.__cause__})"
    for kind in type(error).__mro__:
        if (ours := _SAME_NAMES.get(kind.__name__)) is not None:
            return ours(said)
    raised = traceback.extract_tb(error.__traceback__)
    where = f"Raised at {raised[-1].filename}:{raised[-1].lineno}." if raised else None
    return RendezvousError(said, hint=where)


def is_graceful_exit(error: BaseException) -> bool:
    """Return True if a handler's error only says that this node is not needed (RendezvousGracefulExitError)."""
    return any(kind.__name__ == "RendezvousGracefulExitError" for kind in type(error).__mro__)


_SAME_NAMES: dict[str, type[RendezvousError]] = {
    kind.__name__: kind
    for kind in (RendezvousClosedError, RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError)
}
