"""For plain ``torchrun --rdzv_backend=redis``, which loads this whenever it starts: so nothing is imported at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """Return the function that makes a handler from torch's parameters (entry point of ``torchrun.handlers``)."""

    def make(parameters: Any) -> Any:
        from elastic_core.errors import PluginError

        try:
            from elastic_torchrun.handlers import handler_of
        except ImportError:
            raise PluginError("Plain torchrun meets over Redis only where elastic-torchrun is installed.") from None

        return handler_of("elastic_rdzv_redis.plugin")(parameters)

    return make
