"""A distribution of others that brings a flag, installed beside ours."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import Agent, Rig

from elastic_core.exit_codes import ExitCode

FLAGS = """
    from elastic_core import hookimpl
    from elastic_core.config.flag import Flag
    from elastic_core.config.parse import count_from_zero

    COLOURS = Flag(
        name="colours",
        text="How many colours the board has.",
        section="Board",
        parse=count_from_zero,
        default="2",
        metavar="N",
        agreed=True,
    )

    @hookimpl
    def elastic_flags():
        return [COLOURS]
"""
PLUGIN = """
    import board_flags
    from elastic_core import hookimpl

    @hookimpl
    def elastic_configure(config):
        print("colours:", config.of(board_flags.COLOURS), flush=True)
"""
ENTRY_POINTS = """
    [elastic.flags]
    board = board_flags

    [elastic.plugins]
    board = board_plugin
"""
LAUNCH = """
    from elastic_torchrun.launch import LaunchConfig, elastic_launch
    from elastic_core.errors import UsageError

    def work():
        return 7

    if __name__ == "__main__":
        print(elastic_launch(LaunchConfig(colours=5, plugins=("board",)), work)())
        for wrong in ({"colours": -1}, {"colour": 1}):
            try:
                elastic_launch(LaunchConfig(**wrong), work)()
            except UsageError as refused:
                print(refused.message)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of an agent that has the distribution installed."""
    site = tmp_path / "site-packages"
    information = site / "board-1.0.dist-info"
    information.mkdir(parents=True)
    for name, text in (("board_flags", FLAGS), ("board_plugin", PLUGIN), ("launch", LAUNCH)):
        (site / f"{name}.py").write_text(textwrap.dedent(text))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: board\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}


@pytest.fixture
def run(rig: Rig, environment: dict[str, str]) -> Callable[..., Agent]:
    """Starts ``elastic run`` where the distribution is installed."""

    def start(*arguments: str, **variables: str) -> Agent:
        return rig.run(*arguments, env={**environment, **variables})

    return start


def test_the_help_has_the_flag_in_its_section(run: Callable[..., Agent]) -> None:
    agent = run("--help")
    assert agent.exit_code() == 0
    assert "Board:\n  --colours N " in agent.output
    assert "[default: 2]" in agent.output


@pytest.mark.parametrize(
    ("flags", "variables", "value"),
    [
        (["--colours=3"], {}, 3),
        (["--col", "3"], {}, 3),
        ([], {"PET_COLOURS": "4"}, 4),
        (["--colours=3"], {"PET_COLOURS": "4"}, 3),
        ([], {}, 2),
    ],
)
def test_the_plugin_reads_the_flag(
    run: Callable[..., Agent], flags: list[str], variables: dict[str, str], value: int
) -> None:
    agent = run(*flags, "--plugin=board", "--no_python", "true", **variables)
    assert agent.exit_code() == 0
    assert f"colours: {value}" in agent.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--colours=-1", "--plugin=board"], "--colours '-1' is less than 0. Did you mean '0'?"),
        (["--colours=3"], "--colours=3 needs the plugin 'board'.\n\nAdd --plugin=board."),
        (["--colurs=3"], "There is no option '--colurs'. Did you mean '--colours'?"),
    ],
)
def test_a_wrong_use_of_the_flag_is_refused(run: Callable[..., Agent], flags: list[str], message: str) -> None:
    agent = run(*flags, "--no_python", "true")
    assert agent.exit_code() == ExitCode.USAGE
    assert message in agent.output


def test_a_node_with_another_value_is_refused(run: Callable[..., Agent], file_rendezvous: list[str], rig: Rig) -> None:
    job = ["--nnodes=1:2", *file_rendezvous, "--plugin=board"]
    first = run(*job, "--colours=3", "--no_python", "sleep", "60")
    first.wait_for("round 1")
    other = run(*job, "--colours=4", "--no_python", "sleep", "60")
    assert other.exit_code() == ExitCode.REFUSED
    assert "flags: --colours=4 here, --colours=3 there" in other.output


def test_callers_in_python_give_the_flag_by_its_name(rig: Rig, environment: dict[str, str]) -> None:
    agent = rig.start([sys.executable, "-m", "launch"], env=environment)
    assert agent.exit_code() == 0
    assert "colours: 5" in agent.output
    assert "{0: 7}" in agent.output
    assert "colours=-1 is less than 0. Did you mean '0'?" in agent.output
    assert "There is no flag --colour." in agent.output
