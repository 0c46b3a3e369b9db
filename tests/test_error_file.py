"""The launcher's own ``TORCHELASTIC_ERROR_FILE``: why the job has failed, as torchrun writes it and TorchX reads it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from rig import WORKERS, Agent, Rig, free_port

VARIABLE = "TORCHELASTIC_ERROR_FILE"
RECORDS = """
import os, sys
from {module} import record
assert os.environ["TORCHELASTIC_ERROR_FILE"] != sys.argv[1]
@record
def main():
    raise ValueError("no such layer")
try:
    main()
finally:
    if "killed" in sys.argv:
        os.kill(os.getpid(), 9)
"""
TORCHS = "torch.distributed.elastic.multiprocessing.errors"
LAUNCHES = """
import sys
from {module} import record
from elastic_torchrun.launch import LaunchConfig, elastic_launch
def train():
    raise ValueError("no such layer")
@record
def main():
    elastic_launch(LaunchConfig(max_restarts=0), train)()
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The launcher's error file, in a folder that is not there yet."""
    return tmp_path / "errors" / "launcher.json"


def written(agent: Agent, code: int, file: Path) -> dict[str, Any]:
    """Return the error file of a launcher that ends with this exit code."""
    assert agent.exit_code() == code, agent.output
    data = json.loads(file.read_text())
    assert isinstance(data, dict)
    int(data["message"]["extraInfo"].pop("timestamp"))
    return data


@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("killed", -signal.SIGKILL)])
def test_it_is_what_torchrun_writes(rig: Rig, file: Path, how: str, code: int) -> None:
    """Also after a signal, although the program may have survived the exception."""
    script = rig.folder / "train.py"
    script.write_text(RECORDS.format(module=TORCHS))
    file.parent.mkdir()
    wrote = []
    for module in ("torch.distributed.run", "elastic_core"):
        launcher = ["-m", module, *(["run"] if module == "elastic_core" else [])]
        command = [sys.executable, *launcher, "--standalone", "--max_restarts=0", str(script), str(file), how]
        agent = rig.start(command, env={VARIABLE: str(file)})
        wrote.append(written(agent, 1, file))
        file.unlink()
    assert wrote[0] == wrote[1]
    assert wrote[1]["message"]["message"] == "ValueError: no such layer"
    assert wrote[1]["message"]["errorCode"] == code
    if how == "killed":
        assert "was killed by SIGKILL" in agent.output
        assert "no such layer" not in agent.output, "the program may have gone on after it"


def test_every_node_writes_the_first_failure_of_all(rig: Rig, file_rendezvous: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\nsignal.pause()\n")
    files = [tmp_path / "0.json", tmp_path / "1.json"]
    command = ["--nnodes=2", "--max_restarts=0", *file_rendezvous, script]
    agents = [rig.run(*command, env={VARIABLE: str(file)}) for file in files]
    for agent, file in zip(agents, files, strict=True):
        message = written(agent, 1, file)["message"]
        assert message["message"].startswith("was killed by SIGKILL")
        assert message["errorCode"] == -signal.SIGKILL


def test_a_store_that_is_lost_while_workers_train_is_written_down(rig: Rig, file: Path) -> None:
    """Later failures are named too, but the job has not ended because of them."""
    script = rig.folder / "train.py"
    script.write_text("import signal\nprint('pauses', flush=True)\nsignal.pause()\n")
    command = ["--nnodes=2", "--max_restarts=1", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
    host = rig.run(*command, script)
    host.wait_for("joining")
    events = {"PET_EVENT_LOG_HANDLER": "console", "LOGLEVEL": "CRITICAL"}
    other = rig.run(*command, script, env={VARIABLE: str(file), **events})
    for agent in (host, other):
        agent.wait_for("pauses")
    host.kill_node()
    other.wait_for('"store_lost"')
    assert not file.exists()
    other.kill_worker(*other.workers())
    other.wait_for(r"^\[elastic\] .*this node is out: the store is gone")
    data = written(other, 74, file)["message"]
    lost = "the store is gone, and nothing can be agreed on without it. What failed on this node: was killed by SIGKILL"
    assert data["message"].startswith(lost)
    assert data["errorCode"] == 74


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["--nnodes=x", "train.py"], 2, "x", id="usage"),
        pytest.param(["--no_such_flag", "train.py"], 2, "--no_such_flag", id="unknown flag"),
        pytest.param(["--log_dir=/proc/none", "train.py"], 2, "/proc/none", id="a directory that cannot be made"),
        pytest.param(["--nnodes=2", "--rdzv_backend=none", "train.py"], 2, "none", id="no such backend"),
        pytest.param(
            ["--nnodes=2", "--rdzv_backend=file", "--rdzv_endpoint=FOLDER", "--rdzv_conf=join_timeout=1", "train.py"],
            75,
            "1 of at least 2",
            id="too few nodes",
        ),
    ],
)
def test_an_end_before_the_job_has_begun_is_written_down(
    rig: Rig, file: Path, arguments: list[str], code: int, said: str
) -> None:
    (rig.folder / "train.py").touch()
    arguments = [argument.replace("FOLDER", str(rig.folder)) for argument in arguments]
    data = written(rig.run(*arguments, env={VARIABLE: str(file)}), code, file)
    assert said in data["message"]["message"]
    assert data["message"]["errorCode"] == code


def test_a_signal_is_written_down_and_a_job_that_is_well_writes_nothing(rig: Rig, file: Path) -> None:
    agent = rig.run("--standalone", "--no_python", "true", env={VARIABLE: str(file)})
    assert agent.exit_code() == 0
    assert not file.exists()
    agent = rig.run("--standalone", WORKERS / "sleeper.py", env={VARIABLE: str(file)})
    agent.wait_for_report("started")
    agent.signal(signal.SIGTERM)
    assert "received SIGTERM" in written(agent, 128 + signal.SIGTERM, file)["message"]["message"]


def test_a_file_that_cannot_be_written_is_said(rig: Rig) -> None:
    agent = rig.run("--standalone", "--no_python", "false", env={VARIABLE: "/proc/none/error.json"})
    assert agent.exit_code() == 1
    agent.wait_for(f"warning: {VARIABLE}=/proc/none/error.json cannot be written")


@pytest.mark.parametrize("module", [TORCHS, "elastic_core"])
def test_a_job_that_a_recorded_function_launches_is_recorded(rig: Rig, file: Path, module: str) -> None:
    """With torch's ``record`` the file has our ChildFailedError's text; with ours it has the worker's own error."""
    script = rig.folder / "launches.py"
    script.write_text(LAUNCHES.format(module=module))
    file.parent.mkdir()
    message = written(rig.start([sys.executable, str(script)], env={VARIABLE: str(file)}), 1, file)["message"]
    assert "ValueError: no such layer" in message["message"]
    assert 'raise ValueError("no such layer")' in message["message"] + message["extraInfo"]["py_callstack"]
    assert (message["message"] == "ValueError: no such layer") is (module == "elastic_core")
