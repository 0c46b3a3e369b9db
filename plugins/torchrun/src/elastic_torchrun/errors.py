"""Errors of a rendezvous: a foreign handler's as ours, and ours as callers of torch's handlers catch them."""

from __future__ import annotations

import sys
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

TORCHS = "torch.distributed.elastic.rendezvous"
_SAME_NAMES: dict[str, type[RendezvousError]] = {
    kind.__name__: kind
    for kind in (RendezvousClosedError, RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError)
}


class HandlerError(RendezvousError):
    """An error of a handler that ends the agent, although the session retries errors of its ``cause``'s class."""

    def __init__(self, cause: ElasticError) -> None:
        super().__init__(cause.message, hint=cause.hint)
        self.cause = cause

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # an attribute of other errors
        """The exit code of the cause."""
        return self.cause.exit_code


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


@contextmanager
def torchs_errors() -> Iterator[None]:
    """Raise an error of a rendezvous as torch's of the same name too, so that ``except`` of either class catches it.

    Raises:
        RendezvousError: As ours alone, where torch is not imported.
    """
    try:
        yield
    except RendezvousError as error:
        if (kind := _of_both(type(error))) is None:
            raise
        both = kind(error.message, hint=error.hint)
        both.__dict__.update(error.__dict__)
        raise both.with_traceback(error.__traceback__) from error.__cause__


def _of_both(ours: type[RendezvousError]) -> type[RendezvousError] | None:
    """Return a class of this error and of torch's nearest one; None where torch is not imported or has none."""
    module = sys.modules.get(TORCHS)
    for kind in ours.__mro__:
        if (torchs := getattr(module, kind.__name__, None)) is not None:
            return type(ours.__name__, (ours, torchs), {"__module__": ours.__module__})
    return None
