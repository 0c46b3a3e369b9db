"""Calls of ``torch.distributed.launcher.api``, whose workers mostly are functions, in Elastic's terms."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from elastic_core.errors import UsageError
from elastic_torchrun import call
from elastic_torchrun.launch_config import LaunchConfig, check_entrypoint

TORCHS_TIMEOUT = 900
"""The timeout that torch's LaunchConfig writes into ``rdzv_configs`` where none was given, in seconds."""
TORCHS_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
TORCHS_LOGS = "DefaultLogsSpecs"


def config_of(config: Any, entrypoint: Any, args: Sequence[Any]) -> LaunchConfig:
    """Elastic's LaunchConfig for torch's; what is torch's default and means nothing to Elastic is left out.

    Raises:
        UsageError: Elastic does not take it.
    """
    if callable(check_entrypoint(entrypoint)):
        if config.start_method != "spawn":
            raise UsageError(f"start_method={config.start_method!r}: Elastic forks no workers from the caller.")
        with tempfile.TemporaryDirectory(prefix="elastic_call_") as directory:
            call.write(call.Call(entrypoint, tuple(args)), Path(directory))
    if (logs := type(config.logs_specs).__name__) != TORCHS_LOGS:
        raise UsageError(f"logs_specs is of the class {logs}, which Elastic does not use.")
    given = {item.name: getattr(config, item.name) for item in fields(LaunchConfig) if hasattr(config, item.name)}
    given["rdzv_timeout"] = -1  # torch has written it into rdzv_configs
    given["rdzv_configs"] = {
        key: value for key, value in given["rdzv_configs"].items() if (key, value) != ("timeout", TORCHS_TIMEOUT)
    }
    if given.get("signals_to_handle") == TORCHS_SIGNALS:
        del given["signals_to_handle"]
    return LaunchConfig(**given)
