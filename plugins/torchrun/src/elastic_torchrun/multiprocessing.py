"""Jobs of one node, with the names of ``torch.distributed.elastic.multiprocessing``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from elastic_core.config import MAX_RESTARTS, MONITOR_INTERVAL, parse
from elastic_core.config.parse import Stream
from elastic_core.errors import UsageError
from elastic_torchrun.launch_config import LaunchConfig, Streams, stream_map
from elastic_torchrun.local_agent import LocalElasticAgent, RunResult, WorkerSpec
from elastic_torchrun.process_failure import ProcessFailure

__all__ = ["ProcessFailure", "Std", "to_map"]


class Std:
    """A job on this node: ``Std(entrypoint=train, nproc_per_node=4, log_dir="./logs").run()``.

    The attributes are torch's flags of that name, for ``redirects`` and ``tee``.

    Args:
        entrypoint: A function that is defined at the top level of a module or of the main program, or a command.
        args: The entrypoint's arguments.
        nproc_per_node: The number of workers.
        log_dir: The folder for the workers' output, by round and rank.
        redirects: The streams that go to files only; one flag, or a flag for each local rank.
        tee: The streams that go to files and to the console.
        monitor_interval: An argument of torchelastic's, without effect: workers are not polled.
        max_restarts: How many failures of workers the job survives.
    """

    NONE: ClassVar = Stream.NONE
    OUT: ClassVar = Stream.OUT
    ERR: ClassVar = Stream.ERR
    ALL: ClassVar = Stream.ALL

    def __init__(
        self,
        entrypoint: Callable[..., Any] | str,
        args: tuple[Any, ...] = (),
        *,
        nproc_per_node: int = 1,
        log_dir: str | os.PathLike[str] | None = None,
        redirects: Streams = Stream.NONE,
        tee: Streams = Stream.NONE,
        monitor_interval: float = MONITOR_INTERVAL,
        max_restarts: int = MAX_RESTARTS,
    ) -> None:
        self._spec = WorkerSpec(
            entrypoint=entrypoint,
            args=args,
            local_world_size=nproc_per_node,
            max_restarts=max_restarts,
            monitor_interval=monitor_interval,
            launch=LaunchConfig(log_dir=log_dir, redirects=redirects, tee=tee),
        )

    def run(self) -> RunResult:
        """Run to the end, on the main thread.

        Raises:
            UsageError: An argument is invalid, or a worker's result cannot be sent back.
            KeyboardInterrupt: SIGINT has come; the workers are stopped.
            SignalException: SIGTERM, SIGHUP or SIGQUIT has come; the workers are stopped.
        """
        return LocalElasticAgent(self._spec).run()

    @classmethod
    def from_str(cls, text: str) -> Stream | dict[int, Stream]:
        """Return the flag of ``"3"``, or the flags by local rank of ``"0:1,1:2"``.

        Raises:
            UsageError: The text is neither.
        """
        try:
            streams = parse.stream_map(text)
        except parse.Wrong as wrong:
            raise UsageError(f"{text!r} {wrong}.{wrong.suggestion}") from None
        return dict(streams.by_rank) if streams.by_rank else streams.default


def to_map(val_or_map: Streams, local_world_size: int) -> dict[int, Stream]:
    """Return the streams of each local rank, for one flag or for flags by local rank, where the others have none.

    Raises:
        UsageError: There is no such flag or rank.
    """
    streams = stream_map(val_or_map)
    return {rank: streams[rank] for rank in range(local_world_size)}
