"""Bad input, as a user's shell sees it: one clear message, the right exit code, and nothing started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import WORKERS, Rig, free_port

SCRIPT = str(WORKERS / "sleeper.py")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "4:2", SCRIPT], ["4:2", "2:4"]),
        (["--nproc_per_node", "x", SCRIPT], ["nproc_per_node", "'x'"]),
        (["--nproc_per_node", "0", SCRIPT], ["nproc_per_node", "'0'"]),
        (["--rdzv_backend", "redsi", "--rdzv_endpoint", "host", SCRIPT], ["redsi"]),
        (["--standalone", "--rdzv_conf", "foo=1", SCRIPT], ["foo"]),
        (["--nnodez", "2", SCRIPT], ["nnodez", "nnodes"]),
        (["--standalone", SCRIPT + ".missing"], [".missing", "sleeper.py"]),
    ],
    ids=["nnodes", "nproc_text", "nproc_zero", "backend", "conf", "flag", "script"],
)
def test_a_wrong_value_is_refused_and_quoted(rig: Rig, arguments: list[str], words: list[str]) -> None:
    agent = rig.run(*arguments)
    assert agent.exit_code() == 2
    for word in words:
        assert word in agent.output
    assert "Traceback" not in agent.output
    assert not agent.reports("started")


def test_an_endpoint_where_nobody_listens_has_its_own_code(rig: Rig) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    conf = "is_host=false,connect_timeout=1"
    agent = rig.run("--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", f"--rdzv_conf={conf}", SCRIPT)
    assert agent.exit_code() == 69
    assert endpoint in agent.output
    assert "Traceback" not in agent.output


def test_a_job_whose_nodes_never_come_has_its_own_code(rig: Rig, rendezvous: list[str]) -> None:
    agent = rig.run("--nnodes=2", *rendezvous, "--rdzv_conf=join_timeout=1", SCRIPT)
    assert agent.exit_code() == 75
    assert "started no worker" not in agent.output, "it was needed, and others were missing"
    assert "1 of at least 2 nodes" in agent.output


def test_help_and_the_list_of_plugins_import_no_torch(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    elastic = str(Path(sys.executable).with_name("elastic"))
    for arguments in (["run", "--help"], ["plugins"]):
        agent = rig.start([elastic, *arguments], env={"PYTHONPATH": str(tmp_path)})
        assert agent.exit_code() == 0, agent.output
