"""Two releases of elastic-core in one job: the second one's agents are changed when their interpreter starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig, over

from elastic_core import __version__
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.settings import PROTOCOL

NEXT_PROTOCOL = """
import elastic_core.protocol.codec as codec
codec.__version__, codec.OLDEST_PROTOCOL, codec.PROTOCOL = "9.9.9", codec.PROTOCOL + 1, codec.PROTOCOL + 2
"""
UNKNOWN_FIELD = """
import elastic_core.protocol.codec as codec, elastic_core.session.heartbeat as heartbeat
codec.__version__ = heartbeat.__version__ = "9.9.9"
dump = codec._dump
codec._dump = lambda plain, what, *most: dump({**plain, "colour": "red"} if "info" in plain else plain, what, *most)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[object]:
    conf = "--rdzv_conf=beat_interval=0.5,lost_after=1.5"
    script = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    return ["--nnodes=1:2", "--nproc_per_node=1", conf, *over("file", tmp_path), *script]


@pytest.fixture
def start(rig: Rig, tmp_path: Path, command: list[object]) -> Callable[[str], tuple[Agent, Agent]]:
    """Starts an agent, and beside it, once that trains, one of the release that a change makes."""

    def agents(change: str) -> tuple[Agent, Agent]:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "sitecustomize.py").write_text(change)
        first = rig.run(*command)
        first.wait_for_report("training", world_size=1)
        return first, rig.run(*command, env={"PYTHONPATH": str(tmp_path / "other")})

    return agents


def finish(first: Agent, done: Path) -> None:
    done.touch()
    assert first.exit_code() == ExitCode.SUCCESS, first.output


def test_a_node_without_the_runs_protocol_version_is_refused_with_the_release_to_install(
    start: Callable[[str], tuple[Agent, Agent]], tmp_path: Path
) -> None:
    first, second = start(NEXT_PROTOCOL)
    assert second.exit_code() == ExitCode.REFUSED, second.output
    newer = f"{PROTOCOL + 1} to {PROTOCOL + 2}"
    assert f"written by elastic-core {__version__} (which speaks {PROTOCOL}); this node speaks {newer}" in second.output
    assert f"install elastic-core {__version__} here, or elastic-core 9.9.9 on every node" in second.output
    finish(first, tmp_path / "done")


def test_a_node_whose_row_the_leader_cannot_read_says_so_itself(
    start: Callable[[str], tuple[Agent, Agent]], tmp_path: Path
) -> None:
    first, second = start(UNKNOWN_FIELD)
    second.wait_for(
        "which decides, cannot read what this node writes to the store, so this node gets no place in a round"
    )
    second.wait_for(f"It runs elastic-core {__version__}, and this node 9.9.9: install one release on all nodes")
    first.wait_for("A row in the store is ignored: row has an unknown field 'colour'")
    finish(first, tmp_path / "done")
    second.exit_code()
