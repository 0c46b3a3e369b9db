"""``docs/migrating.md``: its command lines run, and its table has every flag that torchrun has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from etcd_servers import running
from stage import Stage, free_port
from torch.distributed.run import get_args_parser

from elastic_core.cli.surface import FLAGS

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
OURS = [line for line in PAGE.splitlines() if line.startswith("elastic run ")]
THEIRS = ["torchrun", "python -m torchelastic.distributed.launch", "python -m bagua.distributed.run", "torchrun"]
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
def test_our_line_runs(stack: ExitStack, stage: Stage, tmp_path: Path, line: str) -> None:
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
    agents = [stage.run(*words)]
    if "--node_rank=0" in words:
        agents.append(stage.run(*(word.replace("--node_rank=0", "--node_rank=1") for word in words)))
    assert [agent.exit_code() for agent in agents] == [0] * len(agents)
    arguments = shlex.split(line.partition("train.py")[2])
    workers = {said for agent in agents for said in agent.lines if re.match(r"\d+ \[", said)}
    assert workers == {f"{rank} {arguments}" for rank in range(2 if len(agents) == 2 else 8)}


def test_the_table_has_every_flag_of_torchruns_and_so_has_the_command_line() -> None:
    rows = re.findall(r"^\| ((?:`-[-\w]+`(?:, )?)+) \| (same|better|none) \| ?(.*?) ?\|$", PAGE, re.MULTILINE)
    table = {name: (kind, why) for flags, kind, why in rows for name in re.findall(r"--([-\w]+)", flags)}
    assert set(table) == NAMES
    assert {str(flag.name).replace("_", "-") for flag in FLAGS} >= NAMES
    assert [name for name, (kind, why) in table.items() if kind != "same" and not why.strip()] == []
