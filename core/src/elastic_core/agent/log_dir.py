"""Where a run's logs and error files go."""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from pathlib import Path

from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError


def make_log_dir(path: Path) -> None:
    """Make the directory for logs, for this user alone, or find that there can be none while nothing has started yet.

    Raises:
        UsageError: It cannot be made, or not be written to.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--log_dir {str(path)!r} cannot be made: {exc.strerror}.") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--log_dir {str(path)!r} is not writable.")


def log_directory(config: RunConfig, run_uid: str) -> tuple[Path, bool]:
    """Where this run's logs and error files go, and whether that is removed at the end: nobody asked for logs."""
    name = f"{urllib.parse.quote(config.rdzv_id, safe='')}_{run_uid}"
    if config.log_dir is not None:
        return config.log_dir / name, False
    filtered = config.local_ranks_filter is not None or config.stdout_filters or config.stderr_filters
    wanted = config.redirects.any or config.tee.any or filtered
    return Path(tempfile.mkdtemp(prefix=f"elastic_{name[:80]}_")), not wanted
