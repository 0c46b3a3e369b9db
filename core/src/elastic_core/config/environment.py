"""The environment that an agent reads and passes on; ``docs/reference/environment.md`` lists the variables.

Each flag of ``elastic run`` is also read from ``PET_<FLAG>`` (:func:`flag_variable`), as torchrun's are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from elastic_core.errors import without_passwords

FLAG_PREFIX = "PET_"
PLUGINS_VARIABLE = "ELASTIC_PLUGINS"
_MAY_HOLD_PASSWORD = (f"{FLAG_PREFIX}RDZV_ENDPOINT", f"{FLAG_PREFIX}RDZV_CONF")
_EXEC = "ELASTIC_EXEC"  # set below ``elastic exec``, where torchrun is Elastic's; workers do not inherit it
_SECRET = re.compile(r"ELASTIC_\w+_PASSWORD|ELASTIC_JOB_TOKEN")  # a backend's password, or the job's token


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that an agent's processes inherit: without secrets and ``ELASTIC_EXEC``."""

    def is_kept(name: str, value: str) -> bool:
        shows_password = name in _MAY_HOLD_PASSWORD and without_passwords(value) != value
        return name != _EXEC and not _SECRET.fullmatch(name) and not shows_password

    return {name: value for name, value in environ.items() if is_kept(name, value)}


def flag_variable(parameter: str) -> str:
    """Return the variable that a flag is also read from: ``PET_NPROC_PER_NODE`` for ``nproc_per_node``."""
    return FLAG_PREFIX + parameter.upper()


def threads(local_world_size: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return OMP_NUM_THREADS=1 for several workers, unless it is set: each would start a thread on every core."""
    return {"OMP_NUM_THREADS": "1"} if local_world_size > 1 and "OMP_NUM_THREADS" not in environ else {}
