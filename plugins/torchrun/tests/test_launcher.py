from __future__ import annotations

import os
import pickle
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.rendezvous.api import RendezvousError

from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode
from elastic_devices.inventory import Device
from elastic_torchrun.launcher import REFUSALS, configuration, program, reason, replace
from elastic_torchrun.startup import API, LAUNCHER, VARIABLE


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/env/bin/python /env/bin/accelerate launch --num_processes=2 train.py", "accelerate launch"),
        ("python3.11 -u caller.py --fast", "caller.py"),
        ("python -m lightning_fabric.cli run train.py", "lightning_fabric.cli run"),
        ("python -X dev -W error -u train.py", "train.py"),
        ("python3 -u -c print(1) train.py", "python3 -c"),
        ("make train", "make train"),
        ("bash -c torchrun", "bash"),
        ("-bash", "-bash"),
        ("python", "python"),
        ("", "another program"),
    ],
)
def test_a_command_is_told_in_two_words(line: str, words: str) -> None:
    assert program(line.split(" ")) == words


def test_a_command_line_that_elastic_takes_is_a_run() -> None:
    config = configuration(["--nproc-per-node=2", "--max_restarts=3", "-m", "json.tool", "--help"])
    assert (config.nproc_per_node, config.max_restarts) == (2, 3)
    assert config.program.args == ("--help",)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--logs_specs=mine -m json.tool", "--logs_specs 'mine' names a class of torch's, which Elastic does not use."),
        ("--new-flag=1 -m json.tool", "No such option '--new_flag'"),
        ("--help", "No such option '--help'"),
        ("--rdzv_conf=unknown=1 -m json.tool", "unknown"),
        ("--rdzv_backend=nowhere -m json.tool", "There is no rendezvous backend 'nowhere'. Installed: "),
        (
            "--rdzv_backend=torch-c10d --spares=1 -m json.tool",
            "--spares=1: the torch-c10d backend is a",
        ),
        ("--nnodes=4:2 -m json.tool", "--nnodes '4:2' has a minimum, 4, greater than its maximum, 2."),
    ],
)
def test_one_that_it_does_not_take_is_refused_in_one_line(line: str, why: str) -> None:
    with pytest.raises(REFUSALS) as refused:
        configuration(line.split())
    assert why in reason(refused.value)
    assert "\n" not in reason(refused.value)


def test_a_run_whose_devices_are_not_there_is_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of torchrun, the second worker gets the number 1, whatever the host has, and trains on its CPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("elastic_devices.visible.nvidia", lambda machine: (Device("0000:3b:00.0"),))
    why = "--virtual_local_rank: there is no GPU for local rank 1"
    assert configuration(["--virtual_local_rank", "-m", "json.tool"]).nproc_per_node == 1
    with pytest.raises(REFUSALS, match=why):
        configuration(["--nproc_per_node=2", "--virtual_local_rank", "-m", "json.tool"])
    monkeypatch.setenv(VARIABLE, "1")
    specs = type("DefaultLogsSpecs", (), {"root_log_dir": None})()
    given = {"nproc_per_node": 2, "start_method": "spawn", "logs_specs": specs, "rdzv_configs": {}}
    module = SimpleNamespace(__name__=API, launch_agent=lambda config, entrypoint, args: "torch's")
    replace(module)
    assert module.launch_agent(SimpleNamespace(**given, virtual_local_rank=True), print, [1]) == "torch's"
    said = capsys.readouterr().err
    assert "stays torch's own, called by" in said
    assert why in said


def test_a_hint_is_part_of_the_reason() -> None:
    assert reason(UsageError("Wrong.", hint="Do this.\nOr that.")) == "Wrong. Do this. Or that."


def torchs_module(calls: list[tuple[Namespace, str | None]]) -> SimpleNamespace:
    """A launcher like torch's, which notes what it is called with and whether it is below `elastic exec`."""

    def run(args: Namespace) -> None:
        calls.append((args, os.environ.get(VARIABLE)))

    def main(args: list[str] | None = None) -> None:
        raise AssertionError("replaced")

    return SimpleNamespace(
        __name__=LAUNCHER,
        run=run,
        main=main,
        get_args_parser=ArgumentParser,
        parse_args=lambda args: Namespace(),
        record=lambda function: function,
    )


def test_a_call_on_another_thread_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    calls: list[tuple[Namespace, str | None]] = []
    module = torchs_module(calls)
    replace(module)
    caller = threading.Thread(target=module.main)
    caller.start()
    caller.join()
    assert calls == [(Namespace(), None)], "what it starts finds torch's launcher"
    assert os.environ[VARIABLE] == "1", "and the next call ours"
    said = capsys.readouterr().err
    assert said.startswith("elastic: torch.distributed.run stays torch's own, called by ")
    assert said.endswith(": A job is started on the main thread only, where signals arrive.\n")


def test_an_error_of_torchs_own_launcher_names_no_refusal_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    module = torchs_module([])

    def run(args: Namespace) -> None:
        raise OSError("torch's")

    module.run = run
    replace(module)
    with pytest.raises(OSError, match="torch's") as raised:
        module.run(Namespace(training_script="no_such_script.py"))
    assert raised.value.__context__ is None


def test_a_job_that_cannot_begin_ends_the_program_as_elastic_run_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    module = torchs_module([])
    module.get_args_parser = ArgumentParser
    replace(module)
    monkeypatch.setenv("PET_LOG_DIR", "/proc/nowhere")
    with pytest.raises(RendezvousError, match="'/proc/nowhere' cannot be made") as raised:
        module.run(Namespace(training_script=__file__))
    assert isinstance(raised.value, SystemExit), "without a traceback where nobody catches it"
    assert raised.value.code == ExitCode.USAGE
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "as torch's can be sent"
    assert "elastic: error: --log_dir '/proc/nowhere' cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize("taken", [True, False], ids=["by Elastic", "by torch"])
def test_main_writes_the_error_file_that_its_environment_names_and_run_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: bool
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("PET_LOG_DIR" if taken else "PET_RDZV_BACKEND", "/proc/nowhere")
    module = torchs_module([])

    def fail(args: Namespace) -> None:
        raise ValueError("torch's own")

    module.run, module.record = fail, record
    module.parse_args = lambda line: Namespace(training_script=__file__)
    replace(module)
    with pytest.raises((RendezvousError, ValueError)):
        module.run(module.parse_args([]))
    assert not path.exists()
    with pytest.raises((RendezvousError, ValueError)):
        module.main([])
    assert ("'/proc/nowhere' cannot be made" if taken else "torch's own") in path.read_text()


@pytest.mark.parametrize(
    ("given", "entrypoint", "why"),
    [
        ({"start_method": "fork"}, print, "start_method='fork': Elastic forks no workers from the caller."),
        ({"logs_specs": object()}, print, "logs_specs is of the class object, which Elastic does not use."),
        ({}, threading.Lock().acquire, "cannot be sent to another process"),
        ({}, None, "The entrypoint None is neither a function nor a command."),
        ({"rdzv_configs": {"unknown": 1}}, print, "unknown"),
    ],
    ids=["fork", "logs", "entrypoint", "no entrypoint", "conf"],
)
def test_a_function_that_elastic_does_not_take_is_torchs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: dict[str, object],
    entrypoint: Callable[..., object] | None,
    why: str,
) -> None:
    monkeypatch.setenv(VARIABLE, "1")

    class DefaultLogsSpecs:
        root_log_dir = None

    config = SimpleNamespace(
        **{"nproc_per_node": 1, "start_method": "spawn", "logs_specs": DefaultLogsSpecs(), "rdzv_configs": {}, **given}
    )
    module = SimpleNamespace(__name__=API, launch_agent=lambda config, entrypoint, args, server=None: (args, server))
    replace(module)
    assert module.launch_agent(config, entrypoint, [1], server=2) == ([1], 2)
    said = capsys.readouterr().err
    assert said.startswith("elastic: torch.distributed.launcher.api stays torch's own, called by ")
    assert why in said
    monkeypatch.delenv(VARIABLE)
    assert module.launch_agent(config, entrypoint, [1]) == ([1], None), "of what was passed on, without a word"
    assert capsys.readouterr().err == ""
