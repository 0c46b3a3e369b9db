"""The view of a caller of a rendezvous handler, torch's or ours: ``handlers.py BACKEND ENDPOINT CONFIG FILE``.

BACKEND is a name that torch's registry knows; ENDPOINT is where its store is, or for torch's ``c10d`` a host; CONFIG is
JSON, as for ``--rdzv_conf``. The nodes are threads. What came of each call is written to FILE, by name, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

BACKEND, ENDPOINT = sys.argv[1:3]
PATIENCE = 60.0
DURATIONS = {"timeout": 60, "last_call_timeout": 1, "join_timeout": "30"}
CONFIG = {**DURATIONS, **json.loads(sys.argv[3])}


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Job:
    """The nodes of one job."""

    def __init__(self, name: str, least: int, most: int, **config: Any) -> None:
        self.name, self.nodes, self.config = name, (least, most), {**CONFIG, **config}
        self.endpoint = f"{ENDPOINT}:{free_port()}" if BACKEND == "c10d" else ENDPOINT
        self.made: list[Any] = []

    def node(self, local_addr: str = "127.0.0.1") -> Any:
        """The handler of another node."""
        where = (self.endpoint, self.name, *self.nodes, local_addr)
        self.made.append(get_rendezvous_handler(rendezvous.RendezvousParameters(BACKEND, *where, **self.config)))
        return self.made[-1]

    def meets(self) -> str:
        """Make a node and let it join; what that raises. Afterwards the job is over."""
        raised = outcome(lambda: self.node().next_rendezvous())
        self.over()
        return raised

    def over(self) -> list[Any]:
        """End all nodes; what their ``shutdown`` returns."""
        return [each.result(PATIENCE) for each in [call(node.shutdown) for node in self.made]]


def call(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call it in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


def together(*nodes: Any) -> list[Any]:
    """Return the rounds of nodes that ask at once."""
    return [asked.result(PATIENCE) for asked in [call(node.next_rendezvous) for node in nodes]]


def becomes(happened: Callable[[], Any]) -> bool:
    """Wait until something is so; whether it is."""
    deadline = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(happened())


def outcome(function: Callable[[], Any]) -> str:
    """The kind of what a call raises, and '' where it raises nothing; torch's classes go by their own names."""
    try:
        function()
    except ValueError:
        return "ValueError"
    except rendezvous.RendezvousError as exc:
        [kind] = {kind.__name__ for kind in type(exc).__mro__ if kind.__bases__ == (rendezvous.RendezvousError,)}
        return kind
    except Exception as exc:
        return f"no error of torch's: {exc!r}"
    return ""


def rounds() -> dict[str, Any]:
    """Nodes that meet, ask again, and are joined by another."""
    said: dict[str, Any] = {}
    job = Job("pair", 2, 2)
    one, two = job.node(), job.node()
    said["before a round"] = [one.num_nodes_waiting(), one.is_closed()]
    said["what a handler is called"] = [one.get_backend() == BACKEND, one.get_run_id(), one.use_agent_store]
    first = together(one, two)
    said["ranks"] = [sorted(info.rank for info in first), {info.world_size for info in first} == {2}]
    said["the workers' store"] = [
        first[0].bootstrap_store_info == first[1].bootstrap_store_info,
        first[0].bootstrap_store_info.master_addr,
    ]
    first[0].store.set("key", "value")
    said["a store for all nodes"] = first[1].store.get("key").decode()
    said["in a round"] = [one.num_nodes_waiting(), one.is_closed()]
    again = call(two.next_rendezvous)
    said["a node asks again"] = becomes(one.num_nodes_waiting)
    second = [one.next_rendezvous(), again.result(PATIENCE)]
    said["ranks of the next round"] = sorted(info.rank for info in second)
    said["keys of the round before"] = [info.store.check(["key"]) for info in second]
    said["an end"] = job.over()
    said["an end once more"] = job.over()

    job = Job("growing", 1, 2)
    one = job.node("127.0.0.2")
    alone = one.next_rendezvous()
    said["a node by itself"] = [alone.rank, alone.world_size, alone.bootstrap_store_info.master_addr]
    asks = call(job.node("127.0.0.2").next_rendezvous)
    said["nodes that wait"] = becomes(lambda: one.num_nodes_waiting() == 1)
    grown = [one.next_rendezvous(), asks.result(PATIENCE)]
    said["a round with the newcomer"] = [{info.world_size for info in grown} == {2}, one.num_nodes_waiting()]
    job.over()
    return said


def ends() -> dict[str, Any]:
    """Jobs that are closed, and nodes that meet no other."""
    said: dict[str, Any] = {}
    job = Job("closed", 2, 2)
    one, two = job.node(), job.node()
    together(one, two)
    two.set_closed()
    two.set_closed()
    said["closed by another"] = becomes(one.is_closed)
    said["a round of a closed job"] = [outcome(node.next_rendezvous) for node in (one, two)]
    said["the end of a closed job"] = job.over()
    job = Job("ended", 2, 2)
    one, two = job.node(), job.node()
    together(one, two)
    said["a node gives up"] = [two.shutdown(), becomes(one.is_closed), outcome(one.next_rendezvous)]
    job.over()
    job = Job("again", 1, 1)
    said["an id is used again"] = [job.meets(), job.meets()]
    job = Job("never begun", 1, 1)
    node = job.node()
    node.set_closed()
    said["closed before a round"] = node.is_closed()
    job.over()
    said["nobody comes"] = Job("lonely", 2, 2, join_timeout="1").meets()
    job = Job("nowhere", 1, 1, join_timeout="1", is_host="false", read_timeout="1")
    job.endpoint = f"127.0.0.1:{free_port()}"
    said["nobody listens"] = job.meets()
    said["durations that are none"] = [Job("wrong", 1, 1, join_timeout=value).meets() for value in ("soon", "-1", "0")]
    if "etcd" in BACKEND:
        said["protocols"] = [Job(f"by {name}", 1, 1, protocol=name).meets() for name in ("hTTp", "dummy")]
        said["answers that may take no time"] = [
            Job("hasty", 1, 1, read_timeout=seconds).meets() for seconds in ("0", "-10")
        ]
    return said


def main() -> None:
    """Ask all."""
    said = {**rounds(), **ends()}
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            with suppress(RuntimeError):
                thread.join(PATIENCE)
    said["threads that are left"] = [thread.name for thread in threading.enumerate()]
    Path(sys.argv[4]).write_text(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # a node of torch's that waits is not waited for


if __name__ == "__main__":
    main()
