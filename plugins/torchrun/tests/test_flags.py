from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace
from typing import Any

import pytest

from elastic_torchrun.launcher import flags_of, written_in


def parser() -> ArgumentParser:
    """As torch's, with one flag of each kind."""
    parser = ArgumentParser()
    parser.add_argument("--nnodes", default="1:1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    parser.add_argument("--rdzv-backend", "--rdzv_backend", default="static")
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", default="")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--node-rank", "--node_rank", type=int, default=0)
    parser.add_argument("--master-addr", "--master_addr", default="127.0.0.1")
    parser.add_argument("--master-port", "--master_port", type=int, default=None)
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("-t", "--tee", default="0")
    parser.add_argument("--max-restarts", "--max_restarts", type=int, default=0)
    parser.add_argument("--duplicate-stdout-filters", default=[])
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=REMAINDER)
    return parser


BY_HAND = ["--rdzv-backend=static", "--node-rank=0", "--master-addr=127.0.0.1"]


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        pytest.param({}, [], id="what has torch's default is left out"),
        pytest.param({"nproc_per_node": 2, "tee": 3}, ["--nproc-per-node=2", "--tee=3"], id="numbers for texts"),
        pytest.param({"module": True, "tee": None}, ["--module"], id="a switch; None says nothing"),
        pytest.param({"duplicate_stdout_filters": ["a", "b,c"]}, ["--duplicate-stdout-filters=a,b,,c"], id="a list"),
        pytest.param({"mixed_precision": "bf16"}, [], id="a parameter of the caller's own"),
        pytest.param({"nnodes": "1:1", "master_port": "29500"}, ["--master-port=29500"], id="one node has no number"),
        pytest.param({"nnodes": "2"}, ["--nnodes=2", *BY_HAND], id="static nodes have numbers, also by default"),
        pytest.param(
            {"nnodes": 2, "rdzv_endpoint": "h:1", "node_rank": 1},
            ["--nnodes=2", "--rdzv-backend=static", "--rdzv-endpoint=h:1", "--node-rank=1", "--master-addr=127.0.0.1"],
            id="static with an endpoint",
        ),
        pytest.param(
            {"nnodes": "1:2", "rdzv_backend": "c10d", "rdzv_endpoint": "h:1"},
            ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"],
            id="a rendezvous that gives numbers",
        ),
        pytest.param({"nnodes": "2", "standalone": True}, ["--nnodes=2", "--standalone"], id="standalone"),
    ],
)
def test_the_arguments_of_a_program_make_a_command_line(given: dict[str, Any], flags: list[str]) -> None:
    args = parser().parse_args(["train.py", "--lr", "0.1", "--", "-m"])
    for name, value in given.items():
        setattr(args, name, value)
    assert flags_of(args, parser()) == [*flags, "train.py", *args.training_script_args]


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        (["--max_restarts=0", "--tee=0", "train.py"], ["--max-restarts=0"]),
        (["--max_res", "0", "train.py"], ["--max-restarts=0"]),
        (["train.py", "--max_restarts=0"], []),
    ],
)
def test_no_restarts_are_passed_on_if_a_command_line_says_so(line: list[str], flags: list[str]) -> None:
    args = parser().parse_args(line)
    assert flags_of(args, parser(), written_in(line, parser())) == [*flags, *line[line.index("train.py") :]]


def test_parameters_may_be_missing() -> None:
    assert flags_of(Namespace(training_script="train.py", nproc_per_node=2), parser()) == [
        "--nproc-per-node=2",
        "train.py",
    ]


@pytest.mark.parametrize(("use_env", "flags"), [(True, []), (False, ["--pass_local_rank"])])
def test_the_old_launcher_gives_the_local_rank_as_an_argument(use_env: bool, flags: list[str]) -> None:
    args = parser().parse_args(["train.py", "x"])
    args.use_env = use_env
    assert flags_of(args, parser()) == [*flags, "train.py", "x"]
