"""For plain ``torchrun --rdzv_backend=redis``, which loads this whenever it starts: so nothing is imported at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """The function that makes a handler from torch's parameters (entry point of the group ``torchrun.handlers``)."""

    def make(parameters: Any) -> Any:
        from elastic_core.torchrun import handler_of

        return handler_of("elastic_rdzv_redis.plugin")(parameters)

    return make
