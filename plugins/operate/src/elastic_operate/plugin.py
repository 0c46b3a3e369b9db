"""The plugin in an agent: keeps a file about the job, by which commands on this host find it.

The module imports little, and the launch of workers does not wait for the file. Before the launch, the plugin removes
directories that killed agents have left, since a full disk would fail the launch.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core import JoinedRun, hookimpl
from elastic_core.events import Event, Level
from elastic_core.monitors import RunningRound

if TYPE_CHECKING:
    from elastic_operate.job_file import CommandServer

DELAY_SECONDS = 0.25  # after which the file is written: the start of workers has been requested by then
ENDS = ("job_closed", "left")  # the events that say how an agent ends
END_MAX_SECONDS = 1.0  # for the removal of the file


@dataclass(slots=True)
class Course:
    """The course of an agent, for commands: its newest round, None before the first; and its end, '' while it runs."""

    round: RunningRound | None = None
    end: str = ""


class JobFiles:
    """Keeps the file of the node that the agent is, and removes the directories that killed agents have left."""

    def __init__(self) -> None:
        self._news: list[Event] = []  # what is published once the node has joined
        self._closed = threading.Event()
        self._server: CommandServer | None = None
        self._thread: threading.Thread | None = None
        self._course = Course()

    @hookimpl
    def elastic_configure(self) -> None:
        """Remove directories of killed agents."""
        from elastic_operate.abandoned_directories import remove_abandoned, temporary_directories

        with suppress(Exception):  # no launch fails for this
            for path in remove_abandoned(temporary_directories()):
                message = f"removed {path}, which a killed agent has left"
                self._news.append(Event("directory_removed", message, Level.DEBUG))

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Start the thread that keeps the file and answers commands, and report the removed directories."""
        self.elastic_run_ends()  # the agent has entered the job again, as another node
        while self._news:
            run.publish(self._news.pop(0))
        self._closed = closed = threading.Event()
        self._course = course = Course()

        def serve() -> None:
            if closed.wait(DELAY_SECONDS):
                return
            from elastic_operate.agent_state import describe
            from elastic_operate.job_file import CommandServer, describe_agent

            file = describe_agent(run.config, run.run_uid, run.node.node_id, run.log_dir)
            self._server = server = CommandServer(
                file, lambda: describe(run.config, run.look()), course, run.connect, run.publish, closed
            )
            server.run()

        self._thread = threading.Thread(target=serve, name="elastic-commands", daemon=True)
        with suppress(RuntimeError):  # no thread can be started
            self._thread.start()

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Take the round, whose workers commands show."""
        self._course.round = round

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Note how the job, or this node's part in it, has ended."""
        if event.name in ENDS:
            self._course.end = event.message.partition("\n")[0]

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Remove the file."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(END_MAX_SECONDS)
        self._server = self._thread = None
