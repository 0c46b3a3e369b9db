"""Which class a failure is of: whether another try can help."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping

from elastic_core.incidents import Incident, follows_peer_loss


class FailureClass(str, enum.Enum):
    """Whether another try can help."""

    SCRIPT = "script"
    FRAMEWORK = "framework"
    INFRASTRUCTURE = "infrastructure"
    PEER = "peer"
    PREEMPTION = "preemption"
    UNKNOWN = "unknown"


_BY_EXCEPTION: Mapping[str, FailureClass] = {
    **dict.fromkeys(
        ("AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError", "SyntaxError"),
        FailureClass.SCRIPT,
    ),
    "TypeError": FailureClass.SCRIPT,
    **dict.fromkeys(("AssertionError", "OutOfMemoryError", "RuntimeError", "ValueError"), FailureClass.FRAMEWORK),
    **dict.fromkeys(
        ("ConnectionError", "ConnectionRefusedError", "DistNetworkError", "TimeoutError"), FailureClass.INFRASTRUCTURE
    ),
}
_BY_SIGNAL: Mapping[int, FailureClass] = {
    signal.SIGKILL: FailureClass.INFRASTRUCTURE,
    signal.SIGBUS: FailureClass.INFRASTRUCTURE,
    signal.SIGTERM: FailureClass.PREEMPTION,
    signal.SIGABRT: FailureClass.FRAMEWORK,
    signal.SIGSEGV: FailureClass.FRAMEWORK,
}


def classify(incident: Incident) -> FailureClass:
    """Return the class of a failure, by its signal or the type of its exception."""
    code = incident.exit_code or 0
    number = -code if code < 0 else code - 128
    if (by_signal := _BY_SIGNAL.get(number)) is not None and not incident.exception:
        return by_signal
    if follows_peer_loss(incident):
        return FailureClass.PEER
    return _BY_EXCEPTION.get(incident.exception.rpartition(".")[2], FailureClass.UNKNOWN)
