"""For plain ``torchrun --rdzv_backend=elastic-etcd``. torchrun loads this whenever it starts, so it imports nothing.

The names ``etcd`` and ``etcd-v2`` are torch's own there.
"""

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
            raise PluginError("Plain torchrun meets over etcd only where elastic-torchrun is installed.") from None

        return handler_of("elastic_rdzv_etcd.plugin")(parameters)

    return make
