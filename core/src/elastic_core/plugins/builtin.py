"""Core's own plugins, which every run has. They are registered through the same hooks as all others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from elastic_core.config.environment import threads
from elastic_core.config.program import Program, ProgramKind, interpreter, python_program
from elastic_core.events import Event, Level
from elastic_core.hookspecs import hookimpl
from elastic_core.host.identity import host_name
from elastic_core.host.terminal import CYAN, RED, YELLOW, painter, printable, printable_lines
from elastic_core.incidents import (
    SPENDS_A_RESTART,
    Action,
    Failure,
    FailureClass,
    History,
    Incident,
    Verdict,
    is_same_step,
    repeats_after_restart,
)

if TYPE_CHECKING:
    from elastic_core.monitors import Assignment

NO_LIMIT = 2**31 - 1  # for scripts, which read TORCHELASTIC_MAX_RESTARTS as a number


def is_worth_requeueing(incident: Incident, past: Sequence[Failure] = ()) -> bool:
    """Return True if the job that an incident ends may succeed elsewhere: a GPU, a node, the network or storage failed.

    A worker that was killed without a word may be killed again for the same reason, so its job is not. Neither is a job
    that the same failure has ended at the same step before, unless that was twice, by the fault of one host.
    """
    from elastic_core.protocol.counters import as_record  # here, since only a job that fails needs it

    found = incident.failure_class
    if not incident.message or found is FailureClass.PREEMPTION:
        return bool(incident.message)
    own = as_record(incident)
    again = [one for one in past if one.signature == own.signature and is_same_step(one.step, own.step)]
    on_host = incident.explanation.hosts_fault and all(one.host == own.host for one in again)
    return found in (FailureClass.INFRASTRUCTURE, FailureClass.PEER) and len(again) < 1 + on_host


class MaxRestartsPolicy:
    """Restart until ``--max_restarts`` are spent, unless the first has not mended a program that could not begin."""

    @hookimpl
    def elastic_judge_failure(self, incident: Incident, history: History) -> Verdict:
        """Return a verdict in every case, also when every other policy abstains."""
        if incident.kind not in SPENDS_A_RESTART:
            return Verdict(Action.RESTART, f"{incident.kind.value.replace('_', ' ')} spends no restart")
        if history.max_restarts is None or history.restarts < history.max_restarts:
            if (why := repeats_after_restart(incident, history.failures)) is not None:
                return Verdict(Action.GIVE_UP, f"a restart has not mended {why}")
            limit = "" if history.max_restarts is None else f" of --max_restarts={history.max_restarts}"
            return Verdict(Action.RESTART, f"restart {history.restarts + 1}{limit}")
        why = f"all restarts of --max_restarts={history.max_restarts} are spent"
        if history.max_restarts == 0:
            why = "--max_restarts is 0, so the first failure ends the job"
        return Verdict(Action.GIVE_UP, why, requeue=is_worth_requeueing(incident, history.failures))


class LogLineMetrics:
    """Prints a line on stderr for each event: ``[elastic] 12:34:56 node0: a worker failed``, on a terminal in colours.

    ``least`` is the least level that is printed; ``clock`` returns the seconds since the epoch.
    """

    def __init__(self, *, least: Level = Level.INFO, clock: Callable[[], float] = time.time) -> None:
        self._least, self._clock = least, clock
        self._host, self._stream = host_name().partition(".")[0], sys.stderr
        self._paint = painter(self._stream)

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Write the event; lines after its first begin with ``|``, so that none of them looks like another event."""
        if event.level < self._least:
            return
        at = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        prefix = f"[elastic] {at} {printable(str(event.fields.get('node', self._host)))}: "
        first, *more = printable_lines(event.message)
        if (colour := _colour(event)) is not None:
            first = self._paint(first, colour)
        self._stream.write("".join([f"{prefix}{first}\n", *(f"  | {line}\n" for line in more)]))
        self._stream.flush()


def _colour(event: Event) -> int | None:
    """Return the colour of an event: of failures, of warnings and hangs, and of rounds that follow another one."""
    if event.level >= Level.WARNING:
        return RED if event.level >= Level.ERROR else YELLOW
    return CYAN if event.name == "round_started" and event.fields.get("cause") else None


class PlainWorkerStart:
    """Starts every worker as a fresh process, with the environment that training scripts know from torchrun.

    Workers inherit the agent's ``environ``, and get the names of the ``plugins`` that the run names, since some have a
    part in workers.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, *, plugins: Sequence[str] = ()) -> None:
        self._environ, self._plugins = environ, tuple(plugins)

    @hookimpl
    def elastic_worker_command(self, program: Program, assignment: Assignment) -> list[str]:
        """Return the interpreter's command, or the executable's; ``${local_rank}`` in arguments is replaced."""
        args = [argument.replace("${local_rank}", str(assignment.local_rank)) for argument in program.args]
        if program.kind is ProgramKind.EXECUTABLE:
            return [program.target, *args]
        return [*interpreter(self._environ), *python_program(program), *args]

    @hookimpl
    def elastic_worker_environment(self, assignment: Assignment) -> dict[str, str]:
        """Return the variables that training scripts read; ``docs/reference/environment.md`` has their meanings."""
        place = assignment.place
        told = {
            "RANK": assignment.rank,
            "LOCAL_RANK": assignment.local_rank,
            "GROUP_RANK": place.group_rank,
            "ROLE_RANK": place.first_role_rank + assignment.local_rank,
            "ROLE_NAME": assignment.role,
            "WORLD_SIZE": place.world_size,
            "LOCAL_WORLD_SIZE": place.local_world_size,
            "GROUP_WORLD_SIZE": place.group_world_size,
            "ROLE_WORLD_SIZE": place.role_world_size,
            "MASTER_ADDR": assignment.master_addr,
            "MASTER_PORT": assignment.master_port,
            "TORCHELASTIC_RESTART_COUNT": assignment.restart_count,
            "TORCHELASTIC_MAX_RESTARTS": NO_LIMIT if assignment.max_restarts is None else assignment.max_restarts,
            "TORCHELASTIC_RUN_ID": assignment.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": assignment.use_agent_store,
            "TORCHELASTIC_ERROR_FILE": assignment.error_file,
            "ELASTIC_RUN_UID": assignment.run_uid,
            "ELASTIC_ROUND": assignment.round,
            "ELASTIC_LOCAL_RANK": assignment.local_rank,
        }
        environment = {name: str(value) for name, value in told.items()}
        if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in self._environ:
            environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
        if self._plugins or "ELASTIC_PLUGINS" in self._environ:  # which may name one that --no_plugin switches off
            environment["ELASTIC_PLUGINS"] = ",".join(self._plugins)
        return environment | threads(place.local_world_size, self._environ)
