"""Runs the health checks of a node before it joins its job (``docs/health.md`` has the rule).

A warden is the parent of every check that is a process: it ends the whole tree of one that takes too long, and of all
if the agent is killed.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any, TypeAlias

from elastic_core import JoinGate
from elastic_core.config import inheritable
from elastic_core.errors import ResourceError, UnhealthyNodeError, in_one_line
from elastic_core.events import Event, Field, Level
from elastic_core.warden import (
    CLOSING,
    Exited,
    SpawnFailed,
    SpawnRequest,
    StopCompleted,
    Stuck,
    Warden,
    WardenDied,
    WardenEvent,
)
from elastic_health.checks import ChosenCheck, ChosenChecks, Finding
from elastic_health.flags import HEALTH_TIMEOUT
from elastic_health.output import judge_output

OUTPUT_BYTES = 1 << 16  # of each stream of a command, at most; the rest is read and dropped
TOO_SLOW = f"Run it by hand on this host, or give it more time: --{HEALTH_TIMEOUT.name}=SECONDS."
END_MAX_SECONDS = 20.0  # from SIGKILL to the end of all processes of a check; after 15 s one is reported as stuck

Wait: TypeAlias = "Callable[[float, Sequence[Any]], list[Any]]"
"""Waits for so many seconds at most until some of these are readable, and returns them."""


def _wait(seconds: float, others: Sequence[Any]) -> list[Any]:
    return select.select(others, [], [], seconds)[0]


class HealthChecks:
    """The health checks of one node, which run at its gate."""

    def __init__(self, chosen: ChosenChecks, gate: JoinGate) -> None:
        self._gate, self._publish = gate, gate.publish
        self._checks, self._limit, self._retry = chosen.checks, chosen.timeout, chosen.retry
        self._has_processes = any(one.check.look is None for one in self._checks)

    def add_to_gate(self) -> None:
        """Have the gate call :meth:`run`, unless there is no check."""
        if self._checks:
            # Only a check that is a process says anything of a host that has failed.
            self._gate.add(self.run, quick=self._retry is None and not self._has_processes, again=self._has_processes)

    def run(self) -> None:
        """Run all checks, again after each pause, until the gate is closed.

        Raises:
            UnhealthyNodeError: A check has failed.
        """
        began, patience = time.monotonic(), self._gate.patience
        while failed := self._failed_checks():
            names = ", ".join(failed)
            if self._retry is None or time.monotonic() - began + self._retry > patience:
                tried = "" if self._retry is None else f", which ran again for {patience:g} s at most"
                raise UnhealthyNodeError(
                    f"This node does not enter job {self._gate.config.rdzv_id!r}, because of the health "
                    f"check{'s' * (len(failed) > 1)} {names}{tried}.",
                    hint=" ".join(dict.fromkeys(finding.advice for finding in failed.values() if finding.advice))
                    or f"Run the command of the check on this host: {names}",
                )
            message = f"this node does not enter the job yet ({names}): its checks run again in {self._retry:g} s"
            self._publish(Event("node_check_again", message, Level.WARNING, {"pause_s": self._retry}))
            self._gate.wait(self._retry)
            if self._gate.closed.is_set():
                return

    def _failed_checks(self) -> dict[str, Finding]:
        """Run each check once; return the findings of the failed checks, by their names, none if the gate is closed."""
        began, failed = time.monotonic(), dict[str, Finding]()
        for one in self._checks:
            at = time.monotonic()
            finding = self._look(one) if one.check.look is not None else self._run_command(one)
            if self._gate.closed.is_set():
                return {}
            if finding is None:
                continue
            failed[one.name] = finding
            message = " ".join(filter(None, [f"the health check {one.name!r} {finding.what}.", finding.advice]))
            took = round(time.monotonic() - at, 3)
            fields: dict[str, Field] = {
                "check": one.name,
                "found": finding.what,
                "advice": finding.advice,
                "took_s": took,
            }
            self._publish(Event("node_check_failed", message, Level.ERROR, fields))
        if not failed and (self._retry is not None or self._has_processes):
            took, names = round(time.monotonic() - began, 3), ", ".join(one.name for one in self._checks)
            message = f"this node is healthy: {names} ({took:.1f} s)"
            self._publish(Event("node_checked", message, Level.INFO, {"checks": names, "took_s": took}))
        return failed

    def _look(self, one: ChosenCheck) -> Finding | None:
        found: list[Finding | None] = []
        reading, writing = os.pipe2(os.O_CLOEXEC)  # its end-of-file wakes this thread

        def look() -> None:
            try:
                found.append(None if one.check.look is None else one.check.look(one.value))
            except BaseException as exc:  # also SystemExit
                message = f"the health check {one.name!r} itself failed: {in_one_line(exc)} It refuses nothing."
                self._publish(Event("node_check_broken", message, Level.WARNING, {"check": one.name}))
                found.append(None)
            finally:
                os.close(writing)

        Thread(target=look, name=f"check {one.name}", daemon=True).start()
        self._gate.wait(self._limit, [reading])
        os.close(reading)
        if found:
            return found[0]
        return Finding(f"did not answer within {self._limit:g} s", "Look for a file system here that does not answer.")

    def _run_command(self, one: ChosenCheck) -> Finding | None:
        with ExitStack() as stack:
            warden = Warden(alone=False)
            stack.callback(warden.close, CLOSING)
            reading, ends = dict[int, bytearray](), list[int]()
            with ExitStack() as given:
                for _ in range(2):
                    ours, end = os.pipe2(os.O_CLOEXEC)
                    stack.callback(os.close, ours)
                    given.callback(os.close, end)
                    reading[ours] = bytearray()
                    ends.append(end)
                nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                given.callback(os.close, nothing)
                environ, (out, err) = inheritable(os.environ), ends
                warden.spawn(0, SpawnRequest(one.command, environ), stdin=nothing, stdout=out, stderr=err)
            output = [*reading.values()]
            ended = self._follow(warden, reading)
            stuck = _end_all(warden, reading)
        stdout, stderr = (bytes(kept).decode(errors="replace") for kept in output)
        if stuck:
            return Finding(f"cannot be ended: {stuck}", "Restart this host: its kernel, or a device, hangs.")
        if isinstance(ended, str):
            return Finding(f"could not be started: {ended}", one.check.advice)
        if ended is None:
            what = f"did not end within {self._limit:g} s, and was killed with all its processes"
            return Finding(what, TOO_SLOW)
        fault = judge_output(ended, stdout, stderr)
        return None if fault is None else Finding(fault, one.check.advice)

    def _follow(self, warden: Warden, reading: dict[int, bytearray]) -> int | str | None:
        """Read the output of the check until it ends; return its exit code, why it did not start, or None.

        None: it has not ended within its time, or before the gate was closed.
        """
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline and not self._gate.closed.is_set():
            for event in _await(warden, reading, deadline, self._gate.wait):
                match event:
                    case Exited(returncode=code):
                        return code
                    case SpawnFailed(error=error):
                        return error
        return None


def _end_all(warden: Warden, reading: dict[int, bytearray]) -> str:
    """Kill the check's remaining processes; return a text that names those that survive, or ''."""
    warden.stop(grace=0.0)
    deadline = time.monotonic() + END_MAX_SECONDS
    while time.monotonic() < deadline:
        for event in _await(warden, reading, deadline):
            match event:
                case StopCompleted() if warden.is_over(event):
                    while reading and _read(select.select([*reading], [], [], 0.0)[0], reading):
                        pass
                    return ""
                case Stuck(pid, name, wchan):
                    return f"process {pid} ({name}) waits in the kernel, in {wchan or 'an unknown place'}"
    return f"not all of its processes have ended {END_MAX_SECONDS:g} s after SIGKILL"


def _await(warden: Warden, reading: dict[int, bytearray], deadline: float, wait: Wait = _wait) -> list[WardenEvent]:
    """Return the events of the warden as soon as there are some; read the check's output meanwhile.

    Return none at the deadline, and if ``wait`` returns before it with nothing.
    """
    while (left := deadline - time.monotonic()) > 0:
        if not (readable := wait(left, [warden, *reading])):
            break
        _read(readable, reading)
        events = warden.receive() if warden in readable else []
        for event in events:
            if isinstance(event, WardenDied):
                raise ResourceError(f"The process that starts the health checks is gone: {event.reason}.")
        if events:
            return events
    return []


def _read(readable: list[Any], reading: dict[int, bytearray]) -> bool:
    """Read from these descriptors without blocking, and keep the last bytes; return whether there were any."""
    for descriptor in [one for one in readable if one in reading]:
        if part := os.read(descriptor, OUTPUT_BYTES):
            kept = reading[descriptor]
            kept += part
            del kept[: max(0, len(kept) - OUTPUT_BYTES)]
        else:
            del reading[descriptor]
    return bool(readable)
