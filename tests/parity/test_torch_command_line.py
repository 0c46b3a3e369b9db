"""The expectations of torch's own tests of its launcher's command line, for torchrun's parser and for ours.

torch's are ``launcher/run_test``, ``launcher/launch_test`` and ``argparse_util_test``. Held elsewhere: what workers see
under whole launch lines (``test_launch_lines.py``), abbreviations, and that the page knows every flag
(``tests/test_migrating.py``), what each flag does (``tests/test_surface.py``), ``python -m torch.distributed.launch``
and programs that call ``main()`` (``tests/test_exec.py``), several agents (``tests/test_nodes.py``), ``init_method``
(``tests/test_tcp_init.py``), and signals (``tests/test_signals.py``).
"""

from __future__ import annotations

import functools
import os
import shlex
from argparse import Action
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from torch.distributed.argparse_util import check_env, env
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, determine_local_world_size, get_args_parser

from elastic_core.cli import settle
from elastic_core.cli.run import RunCommand
from elastic_core.cli.settle import count_workers
from elastic_core.config.run import Flags, RunConfig
from elastic_core.errors import UsageError
from elastic_core.rendezvous.options import RendezvousOptions
from elastic_devices.inventory import Machine
from elastic_devices.visible import gpus

ACTIONS: dict[str, Action] = {
    action.dest: action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"
}
SWITCHES = [name for name, action in ACTIONS.items() if isinstance(action, check_env)]
VALUES = {
    "nnodes": ("1:4", "2"),
    "rdzv_conf": ("join_timeout=7", "join_timeout=8"),
    "start_method": ("fork", "forkserver"),
    "event_log_handler": ("console", "null"),
    "signals_to_handle": ("SIGUSR1", "SIGTERM,SIGUSR2"),
    "redirects": ("0:1,1:2", "3"),
    "duplicate_stdout_filters": ("one,two,,half", "three"),
    "numa_binding": ("socket", "node"),
    "local_addr": ("10.0.0.1", "10.0.0.2"),
}
"""Two values of each flag that takes one, where ``2`` and ``3`` are none."""
OF_PLUGINS = {
    "virtual_local_rank": False,
    "numa_binding": None,
    "duplicate_stdout_filters": (),
    "duplicate_stderr_filters": (),
    "event_log_handler": "null",
}
"""The flags of torchrun's that a plugin declares, and their defaults."""

Read = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a script; the environment says nothing to a launcher."""
    for name in list(os.environ):
        if name.startswith(("PET_", "TORCH_ELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # or torchrun sets it
    (tmp_path / "train.py").touch(0o755)
    monkeypatch.chdir(tmp_path)
    for read in (theirs, ours):
        defaults(read)


def theirs(*words: str) -> dict[str, Any]:
    """The flags of a line as torchrun reads it, with the present environment."""
    return vars(get_args_parser().parse_args([*words, "train.py", "--lr", "1"]))


def ours(*words: str) -> dict[str, Any]:
    """The same as we do."""
    flags = parsed([*words, "train.py", "--lr", "1"])
    settings = {name: flags.settings.get(name, unset) for name, unset in OF_PLUGINS.items()}
    return {item.name: getattr(flags, item.name) for item in fields(Flags) if item.name != "settings"} | settings


def parsed(words: list[str]) -> Flags:
    """Return the flags that ``elastic run`` reads."""
    found: list[Flags] = []

    def keep(**values: Any) -> int:
        found.append(Flags(**values))
        return 0

    RunCommand(keep).main(words, standalone_mode=False)
    return found[0]


@functools.cache
def defaults(read: Read) -> dict[str, Any]:
    """The flags of a line that has none."""
    return read()


def changed(read: Read, *words: str) -> dict[str, Any]:
    """The flags that a line, or the environment, gives another value."""
    return {name: value for name, value in read(*words).items() if value != defaults(read)[name]}


@pytest.mark.parametrize("name", [name for name in ACTIONS if name not in SWITCHES])
def test_a_flag_with_a_value_comes_from_the_line_or_else_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first, second = VALUES.get(name, ("2", "3"))
    reads = [changed(ours, *words) for option in ACTIONS[name].option_strings for words in forms(option, first)]
    assert [set(read) for read in reads] == [{name}] * len(reads)
    assert all(read == reads[0] for read in reads)
    other = changed(ours, f"--{name}={second}")
    monkeypatch.setenv(f"PET_{name.upper()}", first)
    assert changed(ours) == reads[0]
    assert changed(ours, f"--{name}={second}") == other
    assert set(changed(theirs)) == ({name} if isinstance(ACTIONS[name], env) else set())


def forms(option: str, value: str) -> list[list[str]]:
    """The ways to write a flag and its value."""
    return [[option, value], [f"{option}={value}"] if option.startswith("--") else [f"{option}{value}"]]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_on_if_the_line_has_it_or_else_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for value, on in (("1", True), ("0", False)):
        monkeypatch.setenv(f"PET_{name.upper()}", value)
        for read in (theirs, ours):
            assert changed(read) == ({name: True} if on else {})
    for option in ACTIONS[name].option_strings:
        for read in (theirs, ours):
            assert changed(read, option) == {name: True}, "the line has the last word"


def test_of_a_flag_that_is_written_twice_the_last_one_holds() -> None:
    for read in (theirs, ours):
        assert changed(read, "--nnodes=2", "--nnodes", "1:4") == changed(read, "--nnodes=1:4")
        assert changed(read, "--nnodes=1:4", "--nnodes=1") in ({}, {"nnodes": "1"})


WRONG = """
--nnodes=2:20:30 train.py
--nnodes=x train.py
--nnodes=0 train.py
--nnodes=3:2 train.py
--nproc_per_node=unknown train.py
--nproc_per_node=xpu train.py
--max_restarts=-1 train.py
--max_restarts=1.5 train.py
--no_python --module train.py
--local_ranks_filter=0,a train.py
--redirects=0:1, train.py
--redirects=11 train.py
--tee=1,0:1 train.py
--start_method=thread train.py
--numa_binding=near train.py
--shutdown_timeout=-1 train.py
--shutdown_timeout=soon train.py
--monitor_interval=often train.py
--master_port=http train.py
--node_rank=first train.py
--rdzv_conf=known train.py
--rdzv_conf==1 train.py
--rdzv_conf=join_timeout= train.py
--rdzv=c10d train.py
--unknown=1 train.py
--nnodes
--nnodes=2
"""
"""Lines that torchrun refuses, one way or another."""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_line_that_torchrun_refuses_is_refused(line: str) -> None:
    for read in (config_of, configure):
        with pytest.raises((ValueError, RuntimeError, AssertionError, SystemExit, click.UsageError)):
            read(shlex.split(line))


def test_switches_of_the_environment_contradict_each_other_as_those_of_the_line_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_NO_PYTHON", "1")
    for module, refused in (("1", True), ("0", False)):
        monkeypatch.setenv("PET_MODULE", module)
        for read in (config_of, configure):
            with pytest.raises(ValueError, match=r"(?i)module") if refused else nullcontext():
                read(["./train.py"])


STRICTER = """
--signals_to_handle=SIGTERM,SIGFOO train.py
--event_log_handler=mine train.py
--rdzv_conf=unknown=1 train.py
--rdzv_id= train.py
--tee=1:3 train.py
--local_ranks_filter=-1 train.py
"""
"""Lines that torchrun takes, and ignores in part or stumbles over later; the page says of each that it is refused."""


@pytest.mark.parametrize("line", STRICTER.strip().splitlines())
def test_we_are_stricter_where_the_page_says_so(line: str) -> None:
    config_of(shlex.split(line))
    with pytest.raises(UsageError):
        configure(shlex.split(line))


@pytest.mark.parametrize("word", ["cpu", "auto"])
def test_cores_are_counted_as_torchrun_counts_them(word: str) -> None:
    if word == "auto" and gpus({}, Machine()):
        word = "cpu"  # the torch of this test may not see them
    allowed = os.sched_getaffinity(0)
    try:
        for cpus in (allowed, {min(allowed)}):
            os.sched_setaffinity(0, cpus)
            assert count_workers(word, os.environ) == determine_local_world_size(word) == len(cpus)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("flags", "variable", "seconds"), [([], "", 30), ([], "7", 7), (["--shutdown_timeout=0"], "7", 0)]
)
def test_workers_get_the_time_that_the_flag_says_or_else_the_variable(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], variable: str, seconds: int
) -> None:
    if variable:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable)
    for read in (config_of, configure):
        assert read([*flags, "train.py"]).shutdown_timeout == seconds


def config_of(words: list[str]) -> LaunchConfig:
    """Read a whole line as torchrun does before it starts anything."""
    return config_from_args(get_args_parser().parse_args(words))[0]


def configure(words: list[str]) -> RunConfig:
    """The same as ``elastic run`` does, with one backend whose only option is ``known``."""
    options = RendezvousOptions(endpoint="HOST[:PORT]", conf={"known": "anything"})
    flags = parsed(words)
    return settle.configure(settle.outline(flags, os.environ), flags, os.environ, lambda name: options)
