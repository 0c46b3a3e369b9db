"""Calls the checks that plugins have added to the gate before this node joins its job (rule L17)."""

from __future__ import annotations

import os
from concurrent.futures import wait

from elastic_core.agent.interruption import Interruption
from elastic_core.errors import UnhealthyNodeError, in_one_line
from elastic_core.events import Event, Level
from elastic_core.gates import CHECK_MAX_SECONDS, JoinCheck, JoinGate
from elastic_core.threads import asked

END_MAX_SECONDS = 5.0  # for which a check is awaited once the gate is closed: it may have processes to end


def pass_gate(gate: JoinGate, interruption: Interruption) -> None:
    """Call all checks, one after another; return early at the ``interruption``, and close the gate then.

    Raises:
        UnhealthyNodeError: A check keeps this host out.
    """
    try:
        for check in gate.checks:
            if not interruption.is_due():
                _call(check, gate, interruption)
    finally:
        gate.closed.set()


def _call(check: JoinCheck, gate: JoinGate, interruption: Interruption) -> None:
    """Call a check on another thread, and raise its error."""
    reading, writing = os.pipe2(os.O_CLOEXEC)  # its end-of-file wakes this thread

    def call() -> None:
        try:
            check.call()
        finally:
            os.close(writing)

    gate.start_clock()
    answer = asked(call, name=f"elastic-gate-{check.plugin}")
    try:
        while not interruption.wait([reading], gate.seconds_left()):
            if interruption.is_due():
                gate.closed.set()
                wait([answer], END_MAX_SECONDS)
                return
            if gate.seconds_left() <= 0:
                raise UnhealthyNodeError(
                    f"This node does not enter job {gate.config.rdzv_id!r}: the plugin {check.plugin!r} has not said "
                    f"within {CHECK_MAX_SECONDS:g} s whether it may.",
                    hint="Look for a file system or a service here that does not answer.",
                )
    finally:
        os.close(reading)
    if (problem := answer.exception()) is None:
        return
    if isinstance(problem, UnhealthyNodeError):
        raise problem
    fields = {"plugin": check.plugin, "hook": "elastic_before_join"}
    message = f"a check of the plugin {check.plugin!r} raised, and keeps no node out: {in_one_line(problem)}"
    gate.publish(Event("plugin_failed", message, Level.WARNING, fields))
