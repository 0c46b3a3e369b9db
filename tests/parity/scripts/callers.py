"""The view of a caller in Python of its launcher, torch's or ours: ``callers.py torch|elastic FILE FOLDER``.

The same calls are made of either. What came of each is written to FILE, by name, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SIDE, FOLDER = sys.argv[1], Path(sys.argv[3])


def returns(kind: str) -> Any:
    """Return the result of a worker, or fail."""
    if kind == "tensor":
        import torch

        return torch.ones(2, 3)
    if kind == "large":
        return "x" * 3_000_000
    if kind == "raises":
        raise RuntimeError("sad")
    if kind == "exits":
        sys.exit(138)
    if kind == "segfaults":
        import ctypes

        ctypes.string_at(0)
    return None if kind == "nothing" else kind


def returns_each(*kinds: str) -> Any:
    """Return the result of each rank."""
    return returns(kinds[int(os.environ["RANK"])])


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


def flags_of_streams() -> dict[str, Any]:
    """``Std``, which has the flags of the streams."""
    std: Any = module("torch.distributed.elastic.multiprocessing", "elastic_torchrun.local_agent").Std
    texts = ["0", "3", "0:1", "0:1,1:2", "0:1,", "11", "0:1,1", "1,0:1"]
    return {
        "Std": [std.NONE, std.OUT, std.ERR, std.ALL],
        "Std.from_str": [outcome(std.from_str, text) for text in texts],
    }


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
    four = launcher.elastic_launch(launcher.LaunchConfig(1, 1, 4, **where), returns_each)
    values = four("nothing", "tensor", "large", "a word")
    said["what functions return"] = [values[0], list(values[1].shape), len(values[2]), values[3]]
    for kind in ("exits", "segfaults"):
        try:
            launcher.elastic_launch(launcher.LaunchConfig(1, 1, 1, **where), returns)(kind)
        except errors.ChildFailedError as exc:
            first = exc.get_first_failure()[1]
            said[f"a worker that {kind}"] = [first.exitcode, first.signal_name()]
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
    for part in (rendezvous, flags_of_streams, agents):
        found.update(part())
        Path(sys.argv[2]).write_text(json.dumps(found, default=str))
