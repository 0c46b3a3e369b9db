"""The view of a caller in Python of its launcher, torch's or ours: ``callers.py torch|elastic FILE FOLDER``.

The same calls are made of either. What came of each is written to FILE, by name, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SIDE, FOLDER = sys.argv[1], Path(sys.argv[3])
FAILS, WAITS = "exit 3", "exec sleep 1000"


def returns(kind: str) -> Any:
    """Return the result of one process, or fail."""
    if kind == "tensor":
        import torch

        return torch.ones(2, 3)
    if kind == "large":
        return "x" * 3_000_000
    if kind == "raises":
        raise RuntimeError("sad")
    if kind == "exits":
        print("to stderr", file=sys.stderr)
        sys.exit(138)
    if kind == "segfault":
        import ctypes

        ctypes.string_at(0)
    if kind == "waits":
        import signal

        signal.pause()
    return None if kind == "nothing" else kind


def writes() -> None:
    """Write to both streams: from Python, from a child, and from C, which keeps it in a buffer of its own."""
    import ctypes

    libc = ctypes.CDLL(None)
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        print(f"python, {name}", file=stream)
        os.system(f"echo child, {name} >&{stream.fileno()}")
        libc.fprintf(ctypes.c_void_p.in_dll(libc, name), f"C, {name}\n".encode())


def environment() -> dict[str, str]:
    """Return the environment of a worker."""
    import torch.distributed as dist

    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
    counts = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    return {name: os.environ[name] for name in (*names, *counts)} | {"launched": str(dist.is_torchelastic_launched())}


def run_id_of() -> str:
    """The job's id."""
    return os.environ["TORCHELASTIC_RUN_ID"]


def adds_ranks() -> float:
    """The sum of all ranks, by a collective, and the second time only."""
    import torch
    import torch.distributed as dist

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("not the first time")
    dist.init_process_group("gloo")
    total = torch.tensor([float(os.environ["RANK"])])
    dist.all_reduce(total)
    return total.item()


def fails() -> None:
    """Fail on one rank; the other one waits."""
    returns("raises" if os.environ["RANK"] == "1" else "waits")


def module(torchs: str, ours: str) -> Any:
    """The module of the side that is asked."""
    return import_module(torchs if SIDE == "torch" else ours)


def outcome(call: Any, *args: Any, **given: Any) -> Any:
    """Return the result of a call, or the kind of its exception."""
    try:
        return call(*args, **given)
    except ValueError:
        return "ValueError"
    except Exception as exc:
        return type(exc).__name__


def is_gone(pid: int) -> bool:
    """Return True if a process is there no more."""
    return not os.path.exists(f"/proc/{pid}")


def read(path: str) -> str:
    """A file's text; '' where there is no file."""
    return Path(path).read_text() if path else ""


def lines(path: str) -> list[str]:
    """A file's lines, sorted."""
    return sorted(read(path).splitlines())


@contextlib.contextmanager
def shown(file: Path) -> Iterator[None]:
    """Have this process's stdout go to a file."""
    console = os.dup(1)
    with file.open("w") as opened:
        os.dup2(opened.fileno(), 1)
    yield
    sys.stdout.flush()
    os.dup2(console, 1)
    os.close(console)


def rendezvous() -> dict[str, Any]:
    """Parameters of handlers, and their registry."""
    api = module("torch.distributed.elastic.rendezvous", "elastic_core.rendezvous")
    registry = api.RendezvousHandlerRegistry() if SIDE == "torch" else api.registry

    def given(value: Any) -> Any:
        return api.RendezvousParameters("backend", "endpoint", "id", 1, 2, "address", key=value)

    booleans = ["1", "True", "tRue", "t", "yEs", 1, True, "0", "faLse", "nO", 0, False, "01", "Ture", "", 2, -1]
    numbers = ["0", "-10", " 4 ", 0, -4, True, "a", "0a", ""]
    whole, other = given("x"), lambda parameters: None
    return {
        "parameters by place": [whole.backend, whole.endpoint, whole.run_id, whole.min_nodes, whole.max_nodes],
        "parameters by name": [whole.get("key"), whole.get("other"), whole.get("other", 7), whole.local_addr],
        "get_as_bool": [outcome(given(value).get_as_bool, "key") for value in booleans],
        "get_as_int": [outcome(given(value).get_as_int, "key") for value in numbers],
        "get_as default": [whole.get_as_bool("other"), whole.get_as_bool("other", True), whole.get_as_int("other", 5)],
        "no backend": outcome(api.RendezvousParameters, "", "endpoint", "id", 1, 2),
        "no node": outcome(api.RendezvousParameters, "backend", "endpoint", "id", 0, 2),
        "more at least than at most": outcome(api.RendezvousParameters, "backend", "endpoint", "id", 3, 2),
        "register twice": [outcome(registry.register, "mine", returns) for _ in range(2)],
        "register another": outcome(registry.register, "mine", other),
    }


def processes() -> dict[str, Any]:
    """``start_processes``, with functions and commands."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    api = module("torch.distributed.elastic.multiprocessing", "elastic_torchrun.multiprocessing")
    std: Any = api.Std

    def start(entrypoint: Any, *args: tuple[Any, ...], filters: list[str] | None = None, **logs: Any) -> Any:
        by_rank = dict(enumerate(args))
        envs = {rank: {"RANK": str(rank)} for rank in by_rank}
        specs = DefaultLogsSpecs(str(FOLDER / str(len(list(FOLDER.iterdir())))), **logs)
        return api.start_processes("name", entrypoint, by_rank, envs, specs, duplicate_stdout_filters=filters)

    def failure(of: Any, rank: int = 0) -> list[Any]:
        found = of.failures[rank]
        recorded = found.error_file_data["message"]
        message = recorded if isinstance(recorded, str) else recorded["message"]
        stamped = isinstance(recorded, str) or int(recorded["extraInfo"]["timestamp"]) == found.timestamp
        file = os.path.basename(found.error_file)
        return [found.exitcode, found.signal_name(), message, file, stamped, len(found.timestamp_isoformat())]

    said: dict[str, Any] = {"Std": [std.NONE, std.OUT, std.ERR, std.ALL]}
    texts = ["0", "3", "0:1", "0:1,1:2", "0:1,", "11", "0:1,1", "1,0:1"]
    said["Std.from_str"] = [outcome(std.from_str, text) for text in texts]

    running = start(returns, ("nothing",), ("tensor",), ("large",), ("a word",))
    said["wait that is too short"] = running.wait(0) is None
    pids, done = running.pids(), running.wait()
    values = done.return_values
    said["what functions return"] = [values[0], list(values[1].shape), len(values[2]), values[3]]
    said["all went well"] = [
        done.is_failed(),
        dict(done.failures),
        sorted(pids),
        [is_gone(pid) for pid in pids.values()],
    ]
    said["streams that go to the console"] = [list(done.stdouts.values()), list(done.stderrs.values())]

    each = dict(enumerate([std.NONE, std.OUT, std.ERR, std.ALL]))
    of_functions = start(writes, (), (), (), (), redirects=each).wait()
    said["streams of functions"] = [
        [lines(paths[rank]) for rank in range(4)] for paths in (of_functions.stdouts, of_functions.stderrs)
    ]
    with shown(FOLDER / "console"):
        teed = start("echo", ("apple 0",), ("apple 1",), ("pear 2",), tee=std.OUT, filters=["apple", "ame"])
        teed.wait()
        said["while it is open"] = [teed.nprocs, [read(path) for path in teed.stdouts.values()], teed.stderrs]
        teed.close()
    said["teed lines"] = lines(str(FOLDER / "console"))
    [copied] = FOLDER.rglob("filtered_stdout.log")
    said["copied lines"] = lines(str(copied))

    with_one_waiting = start(returns, ("raises",), ("waits",))
    failed = with_one_waiting.wait()
    message = failed.failures[0].message
    said["the message of an exception"] = message if isinstance(message, str) else message["message"]
    said["is a message a text"] = isinstance(message, str)
    said["who is listed after a failure"] = [sorted(failed.failures), dict(failed.return_values), failed.is_failed()]
    said["an exception"] = failure(failed)
    said["the others are stopped"] = [is_gone(pid) for pid in with_one_waiting.pids().values()]
    exited = start(returns, ("exits",), redirects={0: std.ERR}).wait()
    said["sys.exit"] = [*failure(exited)[:3], "to stderr" in read(exited.stderrs[0]), exited.stdouts[0]]
    said["a segmentation fault"] = failure(start(returns, ("segfault",)).wait())[:3]

    commanded = start("sh", ("-c", FAILS), ("-c", WAITS), redirects={0: std.ALL}).wait()
    said["a command that fails"] = [sorted(commanded.failures), *failure(commanded)[:3]]
    teed = start("echo", (1, 2, 3), ([1, 2],), redirects={1: std.OUT}, tee={0: std.OUT}).wait()
    said["what commands return"] = dict(teed.return_values)
    said["arguments of commands"] = [read(teed.stdouts[0]), read(teed.stdouts[1])]
    said["streams that were not asked for"] = list(teed.stderrs.values())
    closed = start("sleep", (1000,), (1000,))
    pids = closed.pids()
    closed.close()
    said["close ends all"] = [is_gone(pid) for pid in pids.values()]
    said["gaps in the ranks"] = outcome(api.start_processes, "name", "true", {1: ()}, {1: {}}, DefaultLogsSpecs())
    said["ranks that differ"] = outcome(
        api.start_processes, "name", "true", {0: ()}, {0: {}, 1: {}}, DefaultLogsSpecs()
    )
    return said


def agents() -> dict[str, Any]:
    """Whole jobs of one node."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    registry = module("torch.distributed.elastic.rendezvous", "elastic_torchrun.foreign.registry")
    registry = registry.rendezvous_handler_registry if SIDE == "torch" else registry

    server = module("torch.distributed.elastic.agent.server.api", "elastic_torchrun.local_agent")
    local = module("torch.distributed.elastic.agent.server.local_elastic_agent", "elastic_torchrun.local_agent")
    errors = module("torch.distributed.elastic.multiprocessing.errors", "elastic_torchrun.launch")
    launcher = module("torch.distributed.launcher.api", "elastic_torchrun.launch")

    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "id", "max_restarts": 0}
    said: dict[str, Any] = {}
    said["what a worker is told"] = launcher.elastic_launch(
        launcher.LaunchConfig(1, 1, 2, role="trainer", **where), environment
    )()
    said["what a job of commands returns"] = launcher.elastic_launch(launcher.LaunchConfig(1, 1, 1, **where), "true")()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    try:
        launcher.elastic_launch(launcher.LaunchConfig(1, 1, 2, **where), fails)()
    except errors.ChildFailedError as exc:
        rank, first = exc.get_first_failure()
        recorded = first.error_file_data["message"]["message"]
        said["a failed job"] = [rank, first.local_rank, first.exitcode, recorded, "RuntimeError: sad" in str(exc)]
    shut: list[str] = []

    def counted(parameters: Any) -> Any:
        """Return torch's handler, which notes when it is shut down, and cannot be after a failure."""
        handler: Any = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", parameters.run_id, 1, 1))
        shut_down, handler.get_backend = handler.shutdown, lambda: "counted"

        def shutdown() -> bool:
            shut.append(parameters.run_id)
            if parameters.run_id == "fails":
                raise RuntimeError("no store any more")
            return bool(shut_down())

        handler.shutdown = shutdown
        return handler

    registry.register("counted", counted)
    for run_id, command in (("succeeds", "true"), ("fails", "false")):
        config = launcher.LaunchConfig(1, 1, 1, rdzv_backend="counted", run_id=run_id, max_restarts=0)
        said[f"a handler whose job {run_id}"] = outcome(launcher.elastic_launch(config, command))
    said["who is shut down"] = shut
    unnamed = launcher.LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    said["an id of its own"] = [len(name) >= 8 for name in launcher.elastic_launch(unnamed, run_id_of)().values()]
    said["no entrypoint"] = outcome(server.WorkerSpec, "trainer", 1, None)

    def over_handler(function: Any, *, max_restarts: int) -> Any:
        handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "id", 1, 1))
        spec = server.WorkerSpec("trainer", 2, handler, None, function, (), max_restarts)
        specs = DefaultLogsSpecs(str(FOLDER / function.__name__))
        return spec.get_entrypoint_name(), local.LocalElasticAgent(spec, specs, "spawn", 5).run()

    name, result = over_handler(adds_ranks, max_restarts=1)
    said["a restart"] = [name, result.is_failed(), result.state.name, dict(result.return_values)]
    name, result = over_handler(fails, max_restarts=0)
    said["a result that failed"] = [result.is_failed(), result.state.name, dict(result.return_values)]
    said["what has failed"] = [result.failures[1].exitcode, result.failures[1].signal_name()]
    return said


if __name__ == "__main__":
    FOLDER.mkdir()
    found = {}
    for part in (rendezvous, processes, agents):
        found.update(part())
        Path(sys.argv[2]).write_text(json.dumps(found, default=str))
