"""elastic-core and elastic-rdzv-redis, as wheels, and no torch."""

from __future__ import annotations

from importlib.metadata import distributions
from importlib.util import find_spec

import pytest
from rig import Rig

import elastic_core
import elastic_rdzv_redis


def test_the_environment_has_wheels_and_no_torch() -> None:
    assert {each.name for each in distributions() if each.name.startswith("elastic")} == {
        "elastic-core",
        "elastic-rdzv-redis",
    }
    assert find_spec("torch") is None
    for module in (elastic_core, elastic_rdzv_redis):
        assert "site-packages" in str(module.__file__), "installed, not the checkout"


def test_two_nodes_run_any_program(rig: Rig, meeting: list[str]) -> None:
    program = ["--nproc_per_node=2", "--no_python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_PORT"]
    agents = [rig.run(*meeting, *program) for _ in range(2)]
    assert [agent.exit_code() for agent in agents] == [0, 0], agents[0].output
    said = sorted(line for agent in agents for line in agent.lines if line.startswith("rank"))
    assert [line.rpartition(" at ")[0] for line in said] == [f"rank {rank} of 4" for rank in range(4)]
    assert len({line.rpartition(" ")[2] for line in said}) == 1


@pytest.mark.parametrize(
    ("flags", "distribution"),
    [
        (["--nnodes=2", "--rdzv_backend=file", "--rdzv_endpoint=/tmp"], "elastic-rdzv-file"),
        (["--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29400"], "elastic-rdzv-c10d"),
    ],
)
def test_a_backend_that_is_not_installed_is_answered_with_what_brings_it(
    rig: Rig, flags: list[str], distribution: str
) -> None:
    agent = rig.run(*flags, "--no_python", "true")
    assert agent.exit_code() == 2
    wheel = f"{distribution.replace('-', '_')}-{elastic_core.__version__}-py3-none-any.whl"
    assert agent.lines[-1] == (
        f"Install {wheel} from where elastic-core came; the public index has no {distribution} of this project."
    )
