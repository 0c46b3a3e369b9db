"""The launcher's error file, named by its ``TORCHELASTIC_ERROR_FILE``, which TorchX reads after a failed job."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.exit_codes import ExitCode
from elastic_core.worker import ERROR_FILE, error_data, with_exit_code, write_error_file

if TYPE_CHECKING:
    from elastic_core.agent import Ending


def write_error(message: str, exit_code: int) -> None:
    """Write the exception that is being handled, with this message."""
    _write(error_data(message, traceback.format_exc(), exit_code))


def write_ending(ending: Ending) -> None:
    """Write how an agent has failed.

    If the root cause is a worker of this node that wrote an error file, that file's content and exit code are used. A
    lost store takes precedence: a worker that fails then is a consequence, or would have been restarted.
    """
    _write(_data(ending))


def _write(data: Mapping[str, Any]) -> None:
    path = os.environ.get(ERROR_FILE)
    if path and not write_error_file(Path(path), data):
        print(f"elastic: warning: {ERROR_FILE}={path} cannot be written.", file=sys.stderr)


def _data(ending: Ending) -> dict[str, Any]:
    if (incident := ending.incident) is None or ending.exit_code == ExitCode.TOO_FEW_NODES:
        return error_data(ending.why, ending.why, ending.exit_code)  # ``why`` names the nodes that are missing
    what = incident.message or incident.cause()
    if ending.exit_code == ExitCode.STORE_LOST:  # with the store, the job would have gone on after this failure
        return error_data(f"{ending.why}. What failed on this node: {what}", incident.detail, ending.exit_code)
    code = incident.exit_code or ending.exit_code  # of a worker that exited with 0 too early, the job's
    return with_exit_code(ending.recorded, code) if ending.recorded else error_data(what, incident.detail, code)
