"""Errors of a rendezvous, as callers of torch's handlers catch them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from elastic_core.errors import RendezvousError

TORCHS = "torch.distributed.elastic.rendezvous"


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
