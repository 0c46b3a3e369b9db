"""``docs/migrating.md`` has each flag of torchrun and command lines that run; the programs of its Python page run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from etcd_servers import running
from pages import File, steps
from rig import WARM, Agent, Rig, free_port
from torch.distributed.run import get_args_parser

from elastic_core.cli.option import candidates
from elastic_core.config.run import FLAGS
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.flags import declared_flags

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "migrating.md").read_text()
OURS = [line for line in PAGE.splitlines() if line.startswith("elastic run ")]
THEIRS = ["torchrun", "python -m torchelastic.distributed.launch", "python -m bagua.distributed.run", "torchrun"]
PROGRAMS = {step.path: step.text for step in steps((DOCS / "python_api.md").read_text()) if isinstance(step, File)}
EVERY = [*FLAGS, *declared_flags(Catalogue.read(), [flag.name for flag in FLAGS]).values()]
"""The flags of core and of plugins."""
NAMES = {
    option.lstrip("-").replace("_", "-")
    for action in get_args_parser()._actions
    for option in action.option_strings
    if option.startswith("--")
} - {"help"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test has started, after its agents."""
    with ExitStack() as stack:
        yield stack


def test_each_of_their_lines_stands_beside_ours() -> None:
    pairs = re.findall(r"^(torchrun|python -m \S+) .*\n(elastic run) ", PAGE, re.MULTILINE)
    assert [theirs for theirs, _ in pairs] == THEIRS
    assert len(OURS) == len(THEIRS)


@pytest.mark.parametrize("line", OURS, ids=[*THEIRS[:3], "torchrun with static"])
def test_our_line_runs(stack: ExitStack, rig: Rig, tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys; os.write(1, f'{os.environ[\"RANK\"]} {sys.argv[1:]}\\n'.encode())"
    )
    port = str(free_port())
    words = [
        word.replace("train.py", str(tmp_path / "train.py")).replace("29500", port).replace("=node1", "=127.0.0.1")
        for word in shlex.split(line)[2:]
    ]
    words = [f"{word}:{port}" if word == "--rdzv_endpoint=127.0.0.1" else word for word in words]
    if "--rdzv_backend=etcd" in words:
        server = stack.enter_context(running(tmp_path / "etcd"))
        words = [word.replace("etcd1:2379", server.endpoint) for word in words]
    agents = [rig.run(*words)]
    if "--node_rank=0" in words:
        agents.append(rig.run(*(word.replace("--node_rank=0", "--node_rank=1") for word in words)))
    assert [agent.exit_code() for agent in agents] == [0] * len(agents)
    arguments = shlex.split(line.partition("train.py")[2])
    workers = {said for agent in agents for said in agent.lines if re.match(r"\d+ \[", said)}
    assert workers == {f"{rank} {arguments}" for rank in range(2 if len(agents) == 2 else 8)}


def test_the_table_has_every_flag_of_torchruns_and_so_has_the_command_line() -> None:
    rows = re.findall(r"^\| ((?:`-[-\w]+`(?:, )?)+) \| (same|better|none) \| ?(.*?) ?\|$", PAGE, re.MULTILINE)
    table = {name: (kind, why) for flags, kind, why in rows for name in re.findall(r"--([-\w]+)", flags)}
    assert set(table) == NAMES
    assert {str(flag.name).replace("_", "-") for flag in EVERY} >= NAMES
    assert [name for name, (kind, why) in table.items() if kind != "same" and not why.strip()] == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("agent.py", "SUCCEEDED {0: 0, 1: 1, 2: 2, 3: 3}"),
        ("std.py", "SUCCEEDED"),
        ("launch.py", "{0: 42, 1: 42}"),
        ("rendezvous.py", "{0: 'met', 1: 'met'}"),
    ],
)
def test_a_program_of_the_page_runs_as_printed(rig: Rig, tmp_path: Path, program: str, said: str) -> None:
    (tmp_path / program).write_text(PROGRAMS[program])
    agent = rig.start(["bash", "-c", f"cd {tmp_path} && {sys.executable} {program}"], env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert agent.lines[-1] == said
    if program == "std.py":
        assert [path.read_text() for path in tmp_path.glob("logs/*/round_1/rank_0/stdout.log")] == ["training\n"]


def test_the_custom_rendezvous_of_the_page_runs_on_torchs_class(rig: Rig, tmp_path: Path) -> None:
    ours, torchs = (f"from {name}.rendezvous import" for name in ("elastic_core", "torch.distributed.elastic"))
    assert ours in PROGRAMS["rendezvous.py"]
    (tmp_path / "rendezvous.py").write_text(PROGRAMS["rendezvous.py"].replace(ours, torchs))
    agent = rig.start([sys.executable, str(tmp_path / "rendezvous.py")])
    assert agent.exit_code() == 0, agent.output
    assert agent.lines[-1] == "{0: 'met', 1: 'met'}"


def test_the_training_script_of_the_page_goes_on_from_the_newest_nodes_own_checkpoint(rig: Rig, tmp_path: Path) -> None:
    """Two nodes with a folder each; only one of them has trained before."""
    (tmp_path / "train.py").write_text(PROGRAMS["train.py"])

    def node(name: str, *flags: str, epochs: int) -> Agent:
        (tmp_path / name).mkdir(exist_ok=True)
        command = shlex.join([sys.executable, "-m", "elastic_core", "run", *flags, str(tmp_path / "train.py")])
        return rig.start(["bash", "-c", f"cd {tmp_path / name} && {command}"], env={**WARM, "EPOCHS": str(epochs)})

    alone = node("a", "--nproc_per_node=2", epochs=1)
    assert alone.exit_code() == 0, alone.output
    assert "goes on" not in alone.output
    flags = ["--nnodes=2", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'store'}", "--rdzv_id=job"]
    both = [node(name, *flags, epochs=2) for name in "ba"]
    for agent in both:
        assert agent.exit_code() == 0, agent.output
    said = sorted(line for agent in both for line in agent.lines if "goes on" in line)
    assert said == [f"rank {rank} goes on in epoch 1 at sample 0" for rank in (0, 1)]
    saved = [torch.load(tmp_path / name / "checkpoint.pt") for name in "ab"]
    assert [state["epoch"] for state in saved] == [2, 2]
    assert torch.equal(saved[0]["model"]["module.weight"], saved[1]["model"]["module.weight"])


def test_a_flag_that_torchrun_takes_cut_short_is_the_same_one_here() -> None:
    """One letter is too short here; and with ``--no_p`` it might be ``--no_plugin`` that is meant."""
    parser = get_args_parser()
    names = {text.lstrip("-") for flag in EVERY for text in (flag.name, flag.short, flag.off) if text}
    spellings = {text[2:] for action in parser._actions for text in action.option_strings if text.startswith("--")}
    for token in {text[:length] for text in spellings - {"help"} for length in range(2, len(text))}:
        matching = parser._get_option_tuples(f"--{token}")
        theirs, ours = {str(action.dest) for action, *_ in matching}, candidates(token, names)
        assert theirs <= set(ours), token
        assert len(ours) == 1 or len(matching) > 1 or token in ("no-", "no-p", "no_", "no_p"), token
