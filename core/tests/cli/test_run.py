from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

import elastic_core.agent
from elastic_core.agent.report import Ending
from elastic_core.cli import run, settle
from elastic_core.cli.run import RunCommand
from elastic_core.config.parse import NodeRange, OnNodeLoss, Stream, StreamMap
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import FLAGS, Flags, RunConfig, Timing
from elastic_core.errors import PluginError, RendezvousConnectionError, UsageError
from elastic_core.events import Event, Level
from elastic_core.plugins.local_backend import elastic_rendezvous_options
from elastic_core.plugins.manager import Plugins, failure_policies
from elastic_core.rendezvous.options import RendezvousOptions
from elastic_core.warden.client import Warden

TWO_NODES = NodeRange(2, 2)
OPTIONS = {
    "local": elastic_rendezvous_options(),
    "static": RendezvousOptions(endpoint="HOST[:PORT]", endpoint_required=True),
    "file": RendezvousOptions(endpoint="DIRECTORY", endpoint_required=True),
    "c10d": RendezvousOptions(endpoint="HOST[:PORT]", endpoint_required=True, conf={"is_host": "true or false"}),
    "etcd": RendezvousOptions(endpoint="HOST[:PORT]", endpoint_required=True, standalone=True),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", "this"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".", prepend=os.pathsep)


def configure(environ: Mapping[str, str] | None = None, /, **flags: object) -> RunConfig:
    line = replace(Flags(script="train.py"), **flags)  # type: ignore[arg-type] # what a test sets is its own affair
    return settle.configure(settle.outline(line, environ or {}), line, environ or {}, OPTIONS.__getitem__)


def test_nothing_said_is_one_worker_on_one_node() -> None:
    config = configure()
    assert config == RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_id=config.rdzv_id)


def test_scripts_may_be_told_their_local_rank_by_an_argument() -> None:
    assert configure(use_env=False, arguments=("--lr", "1")).program.args == ("--local-rank=${local_rank}", "--lr", "1")


NODES = "--nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=host:1"  # a job of several nodes
FLAGS_GIVEN: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "nnodes": (NODES, "--nnodes=2:6:2", {"min_nodes": 2, "max_nodes": 6, "sizes": (2, 4, 6)}),
    "spares": (NODES, "--spares=2", {"spares": 2}),
    "nproc_per_node": ("", "--nproc_per_node=8", {"nproc_per_node": 8}),
    "role": ("", "--role=trainer", {"role": "trainer"}),
    "standalone": (
        "--rdzv_backend=c10d --rdzv_endpoint=host:1",
        "--standalone",
        {"rdzv_backend": "local", "rdzv_endpoint": ""},
    ),
    "rdzv_backend": (NODES, "--rdzv_backend=file", {"rdzv_backend": "file"}),
    "rdzv_endpoint": (NODES, "--rdzv_endpoint=other:2", {"rdzv_endpoint": "other:2"}),
    "rdzv_id": (NODES, "--rdzv_id=job42", {"rdzv_id": "job42"}),
    "rdzv_conf": (
        NODES,
        "--rdzv_conf=is_host=true,join_timeout=9,run_uid=u",
        {"rdzv_conf": {"is_host": "true"}, "timing": Timing(join_timeout=9), "run_uid": "u"},
    ),
    "node_rank": ("--nnodes=2 --rdzv_backend=static --rdzv_endpoint=host:1", "--node_rank=1", {"node_rank": 1}),
    "master_addr": ("", "--master_addr=host", {"local_addr": "host"}),
    "master_port": ("--nnodes=2 --node_rank=0", "--master_port=7", {"rdzv_endpoint": "127.0.0.1:7"}),
    "local_addr": ("", "--local_addr=host", {"local_addr": "host"}),
    "allow_version_mismatch": ("", "--allow_version_mismatch", {"allow_version_mismatch": True}),
    "module": ("", "--module", {"program": Program(ProgramKind.MODULE, "this")}),
    "no_python": ("", "--no_python", {"program": Program(ProgramKind.EXECUTABLE, "./this")}),
    "run_path": ("", "--run_path", {"program": Program(ProgramKind.RUN_PATH, "this")}),
    "use_env": (
        "",
        "--pass_local_rank",
        {"program": Program(ProgramKind.SCRIPT, "this", (settle.LOCAL_RANK_ARGUMENT,))},
    ),
    "max_restarts": ("", "--max_restarts=7", {"max_restarts": 7}),
    "on_node_loss": ("", "--on_node_loss=fail", {"on_node_loss": OnNodeLoss.FAIL}),
    "shutdown_timeout": ("", "--shutdown_timeout=7", {"shutdown_timeout": 7.0}),
    "failure_grace": ("", "--failure_grace=7", {"failure_grace": 7.0}),
    "preemption_grace": ("", "--preemption_grace=7", {"preemption_grace": 7.0}),
    "signals_to_handle": ("", "--signals_to_handle=SIGUSR1", {"signals_to_handle": (signal.SIGUSR1,)}),
    "log_dir": ("", "--log_dir=logs", {"log_dir": Path("logs")}),
    "redirects": ("", "--redirects=3", {"redirects": StreamMap(default=Stream.ALL)}),
    "tee": ("", "--tee=0:1", {"tee": StreamMap(by_rank={0: Stream.OUT})}),
    "local_ranks_filter": ("", "--local_ranks_filter=0", {"local_ranks_filter": frozenset({0})}),
    "verbose": ("", "--verbose", {"verbose": True, "least_level": Level.DEBUG}),
    "checkpoint_path": ("", "--checkpoint_path=saved", {"checkpoint_path": "saved"}),
    "plugin": ("", "--plugin=mine --plugin=ours", {"plugins": ("mine", "ours")}),
    "no_plugin": ("", "--no_plugin=theirs", {"no_plugin": ("theirs",)}),
    "monitor_interval": ("", "--monitor_interval=7", {"monitor_interval": 7.0}),
}
"""For each flag, the flags beside it, itself, and the fields of the run that it changes."""
ELSEWHERE = {
    "start_method": "taken from torchrun's command lines, without effect: a warning says so",
    "logs_specs": "taken from torchrun's command lines, without effect: a warning says so",
}


def read(line: str) -> Flags:
    """The flags of a command line that names the job."""
    found: list[dict[str, Any]] = []

    def keep(**values: Any) -> int:
        found.append(values)
        return 0

    RunCommand(keep).main(["--rdzv_id=job", *line.split(), "this"], standalone_mode=False)
    return Flags(**found[0])


def configured(line: str) -> RunConfig:
    flags = read(line)
    return settle.configure(settle.outline(flags, {}), flags, {}, OPTIONS.__getitem__)


def test_every_declared_flag_is_tried() -> None:
    assert sorted({*FLAGS_GIVEN, *ELSEWHERE}) == sorted(flag.name for flag in FLAGS)


@pytest.mark.parametrize("flag", FLAGS_GIVEN)
def test_a_flag_reaches_the_config(flag: str) -> None:
    beside, given, changed = FLAGS_GIVEN[flag]
    without, with_it = configured(beside), configured(f"{beside} {given}")
    assert with_it == replace(without, **changed) != without


@pytest.mark.parametrize("flag", ["start_method=fork", "logs_specs=mine"])
def test_a_flag_without_effect_is_said_to_have_none(flag: str) -> None:
    name = flag.partition("=")[0]
    [said] = settle.without_effect(read(f"--{flag}"), "local")
    assert said.startswith(f"--{name}")
    assert name in ELSEWHERE


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ({}, ("local", "")),
        ({"rdzv_endpoint": "host"}, ("c10d", "host")),
        ({"rdzv_endpoint": "node-1.example:29400"}, ("c10d", "node-1.example:29400")),
        ({"rdzv_endpoint": "[::1]:29400"}, ("c10d", "[::1]:29400")),
        ({"rdzv_backend": "file", "rdzv_endpoint": "host:1"}, ("file", "host:1")),
        ({"rdzv_backend": "c10d"}, ("local", "")),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}, ("local", "")),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "[::1]:0"}, ("local", "")),
        ({"rdzv_endpoint": "node-1.example:0"}, ("local", "")),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:10"}, ("c10d", "localhost:10")),
        ({"rdzv_backend": "file", "rdzv_endpoint": "dir:0"}, ("file", "dir:0")),
        ({"rdzv_backend": "static"}, ("local", "")),
        ({"rdzv_backend": "static", "master_port": 0}, ("local", "")),
        ({"rdzv_backend": "static", "master_port": 7}, ("static", "127.0.0.1:7")),
        ({"master_port": 0}, ("local", "")),
        ({"nnodes": TWO_NODES, "master_port": 7}, ("static", "127.0.0.1:7")),
        ({"nnodes": TWO_NODES, "rdzv_endpoint": "host:7", "node_rank": 1}, ("static", "host:7")),
        ({"nnodes": TWO_NODES, "rdzv_endpoint": "host:7", "master_addr": "other"}, ("c10d", "host:7")),
        ({"nnodes": TWO_NODES, "node_rank": 0, "master_addr": "fd00::1"}, ("static", "[fd00::1]:29500")),
        ({"nnodes": TWO_NODES, "rdzv_backend": "c10d", "rdzv_endpoint": "host:7", "node_rank": 1}, ("c10d", "host:7")),
        ({"standalone": True}, ("local", "")),
        ({"standalone": True, "rdzv_backend": "c10d", "rdzv_endpoint": "host"}, ("local", "")),
        ({"standalone": True, "rdzv_backend": "etcd", "rdzv_endpoint": "host"}, ("etcd", "")),
        ({"standalone": True, "rdzv_backend": "etcd"}, ("etcd", "")),
    ],
)
def test_where_the_nodes_meet_follows_from_what_is_said(flags: dict[str, object], place: tuple[str, str]) -> None:
    config = configure(**flags)
    assert (config.rdzv_backend, config.rdzv_endpoint) == place


def test_a_standalone_run_does_without_a_backend_that_is_not_installed() -> None:
    def options_of(name: str) -> RendezvousOptions:
        if name not in OPTIONS:
            raise PluginError(f"There is no rendezvous backend {name!r}.")
        return OPTIONS[name]

    line = Flags(script="train.py", standalone=True, rdzv_backend="redis")
    config = settle.configure(settle.outline(line, {}), line, {}, options_of)
    assert config.rdzv_backend == "local"


@pytest.mark.parametrize(
    "flags",
    [
        {"standalone": True},
        {"standalone": True, "rdzv_backend": "c10d", "rdzv_endpoint": "host", "master_port": 7},
        {},
        {"rdzv_backend": "static"},
        {"master_addr": "host", "node_rank": 0},
        {"master_port": 7},
        {"rdzv_backend": "c10d"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"},
    ],
)
def test_a_run_that_nobody_can_join_has_an_id_of_its_own_unless_it_is_named(flags: dict[str, object]) -> None:
    one, other = configure(**flags).rdzv_id, configure(**flags).rdzv_id
    assert re.fullmatch("[0-9a-f]{8}", one)
    assert one != other
    assert configure(**flags, rdzv_id="mine").rdzv_id == "mine"


@pytest.mark.parametrize(
    "flags",
    [
        {"rdzv_endpoint": "host"},
        {"nnodes": TWO_NODES, "node_rank": 0},
    ],
)
def test_where_torchrun_gives_no_id_a_run_has_torchruns_default(flags: dict[str, object]) -> None:
    assert configure(**flags).rdzv_id == "none"


def test_options_of_c10d_are_taken_where_one_node_does_without_it() -> None:
    said: list[str] = []
    line = Flags(script="train.py", rdzv_backend="c10d", rdzv_conf="use_libuv=0,read_timeout=9,connect_timeout=9")
    settle.configure(settle.outline(line, {}), line, {}, OPTIONS.__getitem__, said.append)
    assert [text.partition(" has no effect")[0] for text in said] == [
        "--rdzv_conf use_libuv=0",
        "--rdzv_conf read_timeout=9",
        "--rdzv_conf connect_timeout=9",
    ]


@pytest.mark.parametrize(
    ("given", "backend", "said"),
    [
        ({"node_rank": 0, "master_addr": "localhost", "master_port": 6000}, "local", []),
        ({"node_rank": 0, "rdzv_backend": "static"}, "local", []),
        ({"node_rank": 5}, "local", ["--node_rank has no effect: of one node the rank is 0, not 5."]),
        ({"node_rank": 5, "nnodes": TWO_NODES}, "static", []),
        (
            {"node_rank": 0, "standalone": True, "master_port": 7},
            "local",
            [
                "--node_rank, --master_port have no effect: ranks, address and port are found by the rendezvous; "
                "--rdzv_backend=static takes them."
            ],
        ),
    ],
)
def test_numbers_given_by_hand_are_said_to_have_no_effect_only_where_they_have_none(
    given: dict[str, Any], backend: str, said: list[str]
) -> None:
    assert [*settle.without_effect(Flags(**given), backend)] == said


@pytest.mark.parametrize(("conf", "uid"), [("", "slurm-77.0"), ("run_uid=mine", "mine")])
def test_the_scheduler_names_the_run_unless_the_user_does(conf: str, uid: str) -> None:
    assert configure({"SLURM_JOB_ID": "77"}, rdzv_conf=conf).run_uid == uid


@pytest.mark.parametrize(
    ("variables", "line", "hint"),
    [
        ({"PET_RDZV_CONF": "nix=1"}, [], "the keys are: {}.\nThe value comes from PET_RDZV_CONF."),
        (
            {"PET_NNODES": "2", "PET_STANDALONE": "1"},
            [],
            "standalone?\nThe value comes from PET_NNODES.\n{}STANDALONE.",
        ),
        ({}, ["--rdzv_conf=nix=1"], "the keys are: {}."),
        ({"PET_RDZV_BACKEND": "redsi"}, [], "{}The value comes from PET_RDZV_BACKEND."),
        ({"PET_PLUGIN": "nope"}, [], "{}The value comes from PET_PLUGIN."),
        ({"ELASTIC_PLUGINS": "nope"}, [], "{}The value comes from ELASTIC_PLUGINS."),
    ],
)
def test_a_refusal_names_the_values_that_came_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], line: list[str], hint: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises((UsageError, PluginError)) as caught,
        run.command.make_context("run", [*line, "train.py"]) as context,
    ):
        run.command.invoke(context)
    first, _, last = hint.partition("{}")
    assert first in (caught.value.hint or "")
    assert (caught.value.hint or "").endswith(last)


def test_plugins_of_the_environment_come_before_those_of_the_line() -> None:
    assert configure({"ELASTIC_PLUGINS": "one, two,"}, plugin=("three",)).plugins == ("one", "two", "three")


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"nnodes": TWO_NODES},
            "--nnodes '2': with the local backend no other node can join.",
            "Say where the nodes meet, e.g. --rdzv_endpoint=HOST[:PORT], the host being one of them.",
        ),
        (
            {"nnodes": NodeRange(1, 2), "standalone": True},
            "--nnodes '1:2': with --standalone no other node can join.",
            "Did you mean to leave out --standalone?",
        ),
        (
            {"nnodes": NodeRange(1, 2), "standalone": True, "rdzv_backend": "etcd"},
            "--nnodes '1:2': with --standalone no other node can join.",
            "Did you mean to leave out --standalone?",
        ),
        (
            {"rdzv_backend": "etcd"},
            "--rdzv_backend 'etcd' needs an endpoint.",
            "Add --rdzv_endpoint=HOST[:PORT].",
        ),
        (
            {"rdzv_backend": "c10d", "nnodes": NodeRange(1, 2)},
            "--rdzv_backend 'c10d' needs an endpoint.",
            "Add --rdzv_endpoint=HOST[:PORT].",
        ),
        (
            {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "nnodes": NodeRange(1, 2)},
            "--nnodes '1:2' cannot meet at 'localhost:0': port 0 is a free port, another one on each node.",
            "Name one port for all nodes, such as 29400, and the host that has it.",
        ),
        (
            {"master_addr": "node1", "master_port": 0, "nnodes": TWO_NODES},
            "--nnodes '2' cannot meet at 'node1:0': port 0 is a free port, another one on each node.",
            "Name one port for all nodes, such as 29400, and the host that has it.",
        ),
        (
            {"rdzv_backend": "local", "rdzv_endpoint": "host"},
            "--rdzv_endpoint 'host': the local backend takes no endpoint.",
            "Leave it out. A plugin declares what its backend takes by elastic_rendezvous_options.",
        ),
        (
            {"rdzv_endpoint": "/shared/jobs"},
            "--rdzv_endpoint '/shared/jobs' is not of the form HOST[:PORT], so the backend must be named.",
            "For a shared directory: --rdzv_backend=file --rdzv_endpoint=/shared/jobs",
        ),
        (
            {"tee": StreamMap(by_rank={12: Stream.OUT}), "nproc_per_node": 4},
            "--tee names local rank 12, but with --nproc_per_node=4 the last one is 3.",
            None,
        ),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: dict[str, object], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        configure(**flags)
    assert (refused.value.message, refused.value.hint) == (message, hint)


Supervise = Callable[[RunConfig, Plugins], Ending]
WARDEN = cast(Warden, object())


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch) -> Callable[[Supervise], None]:
    """Puts a function where the agent begins."""

    def stand_in(function: Supervise) -> None:
        def run(config: RunConfig, plugins: Plugins, given: object) -> Ending:
            assert given is WARDEN, "the agent goes on with what has begun"
            assert [warden for _, warden in sent] == [WARDEN]
            return function(config, plugins)

        sent: list[tuple[RunConfig, Warden]] = []
        start = SimpleNamespace(run=run, begin_starter=lambda *order: sent.append(order))
        monkeypatch.setattr(elastic_core.agent, "start", start, raising=False)

    return stand_in


def test_the_agent_gets_config_and_plugins_and_its_code_is_the_runs(
    supervise: Callable[[Supervise], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def job(config: RunConfig, plugins: Plugins) -> Ending:
        assert "max-restarts" in failure_policies(plugins)
        plugins.publish(Event("e", f"running {config.program.target}"))
        return Ending(75, "too few")

    supervise(job)
    with click.Context(run.command):
        assert run.run(WARDEN, script="train.py", log_dir=Path("logs")) == 75
    assert capsys.readouterr().err.endswith("running train.py\n"), "what was published is told before the run ends"


def test_events_are_observed_even_if_the_run_fails(
    supervise: Callable[[Supervise], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def job(config: RunConfig, plugins: Plugins) -> Ending:
        plugins.publish(Event("e", "the last words"))
        raise RendezvousConnectionError("Nobody listens.")

    supervise(job)
    with pytest.raises(RendezvousConnectionError), click.Context(run.command):
        run.run(WARDEN, script="train.py")
    assert capsys.readouterr().err.endswith("the last words\n")


def test_nothing_is_made_when_something_is_wrong(tmp_path: Path, supervise: Callable[[Supervise], None]) -> None:
    supervise(lambda config, plugins: pytest.fail("started"))
    with pytest.raises(PluginError), click.Context(run.command):
        run.run(WARDEN, script="train.py", log_dir=Path("logs"), plugin=("nosuch",))
    assert not (tmp_path / "logs").exists()
