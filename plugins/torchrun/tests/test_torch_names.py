"""torch's names that Elastic defines: they are made as torch's, and handlers are found by torch's registry."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import errors as torchs

from elastic_causes.find import find_cause
from elastic_core import errors
from elastic_core.errors import PluginError, RendezvousError, UsageError
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_core.worker.error_file import record
from elastic_torchrun.errors import is_graceful_exit
from elastic_torchrun.foreign import registry
from elastic_torchrun.handlers import (
    RendezvousGracefulExitError,
    get_rendezvous_handler,
    launch_settings,
    rendezvous_handler_registry,
)
from elastic_torchrun.launch import ChildFailedError, ProcessFailure, SignalException, failure_of
from elastic_torchrun.launch_config import LaunchConfig
from elastic_torchrun.local_agent import RunResult, Std, WorkerState, to_map
from elastic_torchrun.rendezvous_api import RendezvousHandler
from elastic_torchrun.torch_names import MODULES


def test_a_failure_reads_its_error_file(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    written = {"message": {"message": "ValueError: sad", "extraInfo": {"py_callstack": "…", "timestamp": "7"}}}
    file.write_text(json.dumps(written))
    failure = ProcessFailure(1, 997, 1, str(file))
    assert (failure.local_rank, failure.pid, failure.exitcode, failure.error_file) == (1, 997, 1, str(file))
    assert (failure.message, failure.timestamp, failure.error_file_data) == ("ValueError: sad", 7, written)


@pytest.mark.parametrize("text", [None, "", "[]", '{"other": 1}', '{"message'])
def test_a_failure_without_a_valid_error_file_says_how_the_process_ended(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "error.json"
    if text is not None:
        file.write_text(text)
    failure = ProcessFailure(0, 997, -9, str(file))
    theirs = torchs.ProcessFailure(0, 997, -9, str(tmp_path / "none"))
    assert failure.error_file == theirs.error_file == "<N/A>"
    assert failure.signal_name() == theirs.signal_name() == "SIGKILL"
    assert failure.message == theirs.message == "Signal 9 (SIGKILL) received by PID 997"
    assert failure.error_file_data == {"message": "<NONE>"}
    assert ProcessFailure(0, 997, 3, str(file)).message == "exited with code 3"


def exception(kind: str, text: str = "", *, group: bool = False) -> dict[str, Any]:
    return {"type": kind, "text": text, "frames": [], "group": group}


TRACEBACK = 'Traceback (most recent call last):\n  File "data.py", line 8, in get\n    raise ValueError(x)\n'
LOADED = f"Caught ValueError in DataLoader worker process 0.\nOriginal {TRACEBACK}ValueError: sample 137\nis odd\n"
SPAWNED = f"\n\n-- Process 0 terminated with the following error:\n{TRACEBACK}\nKeyError: 1\n"
COMPILED = "RuntimeError when making fake tensor call\n  got RuntimeError('a and b differ')\n\nfrom user code:\n  x"
SPAWN, COMPILE = "torch.multiprocessing.spawn.ProcessRaisedException", "torch._dynamo.exc.TorchRuntimeError"
POOL = exception("multiprocessing.pool.RemoteTraceback", f'"""\n{TRACEBACK}ValueError: x\n"""')


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        pytest.param([exception("ValueError", LOADED)], "ValueError: sample 137", id="a worker of a DataLoader"),
        pytest.param([exception(SPAWN, SPAWNED)], "KeyError: 1", id="a spawned process"),
        pytest.param(
            [exception(COMPILE, COMPILED)],
            f"{COMPILE}: RuntimeError when making fake tensor call: RuntimeError('a and b differ')",
            id="torch.compile",
        ),
        pytest.param(
            [exception("ExceptionGroup", "2 failed", group=True), exception("ValueError", "x"), exception("KeyError")],
            "ExceptionGroup: 2 failed: ValueError: x",
            id="a group",
        ),
        pytest.param([exception("E", "no"), exception("KeyError")], "E: no (after KeyError)", id="a chain"),
        pytest.param([exception("ValueError", "x"), POOL], "ValueError: x", id="a process of a pool"),
        pytest.param([exception("ExceptionGroup", "none", group=True)], "ExceptionGroup: none", id="an empty group"),
    ],
)
def test_a_failure_names_the_exception_that_another_one_quotes_as_the_report_does(
    tmp_path: Path, raised: list[dict[str, Any]], message: str
) -> None:
    said = f"{raised[0]['type']}: {raised[0]['text']}"
    extra = {"py_callstack": "…", "timestamp": "7"}
    written = {"message": {"message": said, "errorCode": 1, "extraInfo": extra}}
    member = {"by": "exception", "code": 1, "text": "", "exceptions": raised, "paths": []}
    file = tmp_path / "error.json"
    file.write_text(json.dumps({**written, "elastic": member}))
    failure = ProcessFailure(0, 997, 1, str(file))
    assert (failure.message, failure.timestamp, failure.error_file_data) == (message, 7, written)
    assert find_cause(1, json.loads(file.read_text()), "").message == message
    if len(raised) == 1:  # the message itself has it, and so has the file of torch's decorator
        file.write_text(json.dumps(written))
        assert ProcessFailure(0, 997, -6, str(file)).message == message


@pytest.mark.parametrize(
    ("by", "recorded", "code", "explains"),
    [
        ("exit", 1, 1, True),
        ("exit", 3, 3, True),
        ("exit", 1, 3, False),
        ("exit", 3, 1, False),
        ("exit", 1, -9, False),
        ("exception", 1, 3, True),  # by a function of atexit
        ("exception", 1, -11, True),
        ("thread", 0, 1, True),
        ("thread", 0, -9, False),
    ],
)
def test_a_program_may_survive_an_exit_and_the_end_of_a_thread_and_then_a_failure_has_no_record(
    tmp_path: Path, by: str, recorded: int, code: int, explains: bool
) -> None:
    member = {"by": by, "code": recorded, "text": "", "exceptions": [exception("ValueError", "x")], "paths": []}
    message = {"message": "ValueError: x", "errorCode": recorded}
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": message, "elastic": member}))
    failure = ProcessFailure(0, 997, code, str(file))
    assert (failure.message == "ValueError: x") is explains
    assert failure.error_file == (str(file) if explains else "<N/A>")
    assert failure.error_file_data == {"message": message if explains else "<NONE>"}


def test_a_text_of_sys_exit_is_what_a_failure_says(tmp_path: Path) -> None:
    member = {"by": "exit", "code": 1, "text": "no data\n", "exceptions": [exception("ValueError", "x")], "paths": []}
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": "ValueError: x", "errorCode": 1}, "elastic": member}))
    assert ProcessFailure(0, 997, 1, str(file)).message == "no data"


@pytest.mark.parametrize("member", [None, 7, {}, {"exceptions": 7, "text": 7}, {"exceptions": [7, 7], "text": ""}])
def test_a_member_of_an_error_file_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, member: object) -> None:
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": "ValueError: sad", "elastic": member}))
    assert ProcessFailure(0, 997, 1, str(file)).message == "ValueError: sad"


def test_a_worker_that_a_signal_has_ended_fails_as_torchs_unless_more_is_known() -> None:
    place: dict[str, Any] = {"round": 1, "node_id": "n", "host": "h", "rank": 3, "local_rank": 1, "pid": 9}
    incident = Incident(kind=IncidentKind.WORKER_FAILED, exit_code=-7, **place)
    failure = failure_of(incident)
    assert (failure.local_rank, failure.pid, failure.exitcode) == (1, 9, -7)
    assert failure.message == "Signal 7 (SIGBUS) received by PID 9"
    assert failure.error_file_data["message"]["message"] == incident.cause()
    assert failure_of(replace(incident, message="HostOutOfMemory: x")).message == "HostOutOfMemory: x"
    assert failure_of(replace(incident, exit_code=3)).message == "exited with code 3"


def test_a_failed_job_is_made_of_a_name_and_failures_and_recorded_as_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "job.json"))
    failures = {}
    for rank in (0, 1):
        written = {"message": f"error {rank}", "extraInfo": {"py_callstack": "…", "timestamp": str(9 - rank)}}
        (tmp_path / f"{rank}.json").write_text(json.dumps({"message": written}))
        failures[rank] = ProcessFailure(rank, 997, 3, str(tmp_path / f"{rank}.json"))
    error = ChildFailedError("trainer", failures)
    assert (error.name, error.failures, error.returncode) == ("trainer", failures, 1)
    assert error.get_first_failure() == (1, failures[1])
    assert str(error) == error.format_msg() == "trainer has failed. rank 0: error 0; rank 1: error 1"

    def fails() -> None:
        raise error

    with pytest.raises(ChildFailedError):
        record(fails)()
    recorded = json.loads((tmp_path / "job.json").read_text())["message"]
    assert (recorded["message"], recorded["errorCode"]) == ("error 1", 3)


def test_other_objects_are_made_as_torchs() -> None:
    error = SignalException("told to stop", signal.SIGTERM)
    assert (str(error), error.sigval, error.code) == ("told to stop", signal.SIGTERM, 143)
    result = RunResult(WorkerState.FAILED, {0: 1}, {})
    assert (result.return_values, result.failures, result.is_failed()) == ({0: 1}, {}, True)
    assert to_map(Std.ALL, 2) == {0: Std.ALL, 1: Std.ALL}
    assert to_map({1: Std.OUT}, 3) == {0: Std.NONE, 1: Std.OUT, 2: Std.NONE}


@pytest.mark.parametrize(("variable", "expected"), [(None, 30), ("7", 7)])
def test_a_configuration_has_its_time_for_the_end_once_it_is_made(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: int
) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if variable is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable)
    assert LaunchConfig(1, 1, 1).shutdown_timeout == expected
    assert LaunchConfig(1, 1, 1, shutdown_timeout=0).shutdown_timeout == 0
    with pytest.raises(ValueError, match="shutdown_timeout=-1 is negative"):
        LaunchConfig(1, 1, 1, shutdown_timeout=-1)


@pytest.mark.parametrize("name", MODULES["rendezvous"]["elastic_core.errors"].split())
def test_an_error_of_a_rendezvous_needs_no_message(name: str) -> None:
    kind = getattr(errors, name)
    assert str(kind()) == name
    assert str(kind("too late")) == "too late"


# Handlers ------------------------------------------------------------------------------------------------------------


class Mine(RendezvousHandler):
    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def next_rendezvous(self) -> tuple[None, int, int]:
        return None, 0, 1


@pytest.fixture
def registered() -> Iterator[str]:
    rendezvous_handler_registry.register("mine", Mine)
    yield "mine"
    registry.unregister("mine")


def torchs_parameters(*given: Any, **config: Any) -> SimpleNamespace:
    """Parameters with the fields of torch's."""
    names = ("backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr")
    return SimpleNamespace(**dict(zip(names, given, strict=True)), config=config)


@pytest.mark.parametrize("make", [get_rendezvous_handler, rendezvous_handler_registry.create_handler])
@pytest.mark.parametrize("parameters", [RendezvousParameters, torchs_parameters])
def test_a_registered_handler_is_made_of_either_packages_parameters(
    registered: str, parameters: Callable[..., Any], make: Callable[[Any], RendezvousHandler]
) -> None:
    handler = make(parameters(registered, "here:1", "job", 1, 2, "127.0.0.1", key="value"))
    assert isinstance(handler, Mine)
    assert (handler.params.run_id, handler.params.max_nodes, handler.params.get("key")) == ("job", 2, "value")
    assert launch_settings(handler) == {}, "the agent asks the handler"
    assert registry.find(registered) is Mine, "--rdzv_backend finds it, too"


def test_a_handler_of_one_of_our_backends_names_the_rendezvous_to_the_agent() -> None:
    handler = get_rendezvous_handler(torchs_parameters("c10d", "localhost:0", "job", 1, 1, "127.0.0.1", lost_after=7))
    config = LaunchConfig(**launch_settings(handler))
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "localhost:0", "job")
    assert (config.min_nodes, config.max_nodes, config.rdzv_configs) == (1, 1, {"lost_after": 7})


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(PluginError, match="There is no rendezvous backend 'nowhere'"):
        get_rendezvous_handler(RendezvousParameters("nowhere", "", "job", 1, 1))
    with pytest.raises(UsageError, match="there is no key 'unknown'"):
        get_rendezvous_handler(RendezvousParameters("local", "", "job", 1, 1, unknown=1))


def test_a_graceful_exit_is_an_error_of_a_rendezvous_and_known_to_the_agent() -> None:
    error = RendezvousGracefulExitError("not needed")
    assert isinstance(error, RendezvousError)
    assert is_graceful_exit(error)
