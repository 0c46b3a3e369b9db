"""The plugin ``trainjob`` over HTTPS, against a server that takes what Kubeflow Trainer's takes."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from manifest_schemas import custom_resources

from elastic_core import JoinedRun
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event, Field
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions
from elastic_kubernetes.trainjob_status import CA_CERT, STEPS, TOKEN, URL, Server, Training, TrainJobStatus

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/train/status"
TRAIN_JOB = custom_resources()["trainer.kubeflow.org/v1alpha1", "TrainJob"]


@dataclass
class Trainer:
    """The server: what it answers, and what it was sent. It checks a status as the TrainJob's CRD does."""

    port: int = 0
    token: str = "token-1"
    code: int = 200
    taken: list[dict[str, Any]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Return the code for a request."""
        code = self.code
        if path != PATH:
            code = 404
        elif headers.get("Authorization") != f"Bearer {self.token}":
            code = 403
        elif code == 200:
            request = json.loads(body)
            assert list(request) == ["trainerStatus"]
            TRAIN_JOB.validate(
                {
                    "apiVersion": "trainer.kubeflow.org/v1alpha1",
                    "kind": "TrainJob",
                    "spec": {"runtimeRef": {"name": "elastic"}},
                    "status": request,
                }
            )
            assert "lastUpdatedTime" in request["trainerStatus"], "a rule of the CRD"
            assert headers["Content-Type"] == "application/json"
        with self.changed:
            if code == 200:
                self.taken.append(request["trainerStatus"])
            else:
                self.refused.append(code)
            self.changed.notify_all()
        return code

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many statuses were taken."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= count, 60), (self.taken, self.refused)
        return self.taken


@contextmanager
def serving(trainer: Trainer, context: ssl.SSLContext) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = trainer.answer(self.path, dict(self.headers), body)
            status = {"kind": "Status", "status": "Failure", "message": "the reason", "code": code}
            text = json.dumps(status if code != 200 else json.loads(body)).encode()
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "https://elsewhere.invalid/")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    trainer.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trainer(authority: trustme.CA) -> Iterator[Trainer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trainer = Trainer()
    with serving(trainer, context):
        yield trainer


@pytest.fixture
def environ(trainer: Trainer, authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """Return the variables that Kubeflow Trainer sets in each container, and make the files."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text(f"{trainer.token}\n", encoding="ascii")
    return {
        URL: f"https://127.0.0.1:{trainer.port}{PATH}",
        CA_CERT: str(tmp_path / "ca.crt"),
        TOKEN: str(tmp_path / "token"),
    }


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


NODE = NodeInfo(
    node_id="me",
    host="train-0",
    host_id="h",
    slot=0,
    local_world_size=1,
    role="default",
    versions=Versions(python="3.11"),
)


def observer(environ: dict[str, str], clock: Clock, members: tuple[str, ...] = ("me", "other")) -> TrainJobStatus:
    """The plugin on the node of rank 0, unless members say otherwise."""
    status = TrainJobStatus(environ, monotonic=clock, wall=lambda: 1_769_862_896.7)
    config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"))
    status.elastic_run_starts(JoinedRun(config=config, run_uid="run", node=NODE, look=pytest.fail))
    status.elastic_round_starts(SimpleNamespace(members=members))  # type: ignore[arg-type]  # all that it reads
    return status


def progress(step: int | None, **fields: Field) -> Event:
    known: dict[str, Field] = {"rank": 0, "loss": None, "samples": None, "epoch": None, "steps_per_s": None}
    return Event("progress", "", fields={**known, "step": step, **fields})


ROUND = Event("round_started", "", fields={"round": 1, "nodes": 2, "world_size": 4, "restarts": 1})
DONE = Event("job_closed", "", fields={"success": True})


def test_progress_from_the_output_is_sent(environ: dict[str, str], trainer: Trainer, clock: Clock) -> None:
    status = observer({**environ, STEPS: "1000"}, clock)
    status.elastic_observe(ROUND)
    clock.now += 5
    status.elastic_observe(progress(250, loss=0.5, epoch=1.5, steps_per_s=2.5))
    assert trainer.taken[-1] == {
        "progressPercentage": 25,
        "estimatedRemainingSeconds": 300,
        "metrics": [
            {"name": "step", "value": "250"},
            {"name": "steps_per_s", "value": "2.5"},
            {"name": "nodes", "value": "2"},
            {"name": "workers", "value": "4"},
            {"name": "restarts", "value": "1"},
            {"name": "loss", "value": "0.5"},
            {"name": "epoch", "value": "1.5"},
        ],
        "lastUpdatedTime": "2026-01-31T12:34:56Z",
    }
    status.elastic_observe(DONE)
    assert trainer.taken[-1]["progressPercentage"] == 100, "the last one does not wait for its time"
    assert trainer.taken[-1]["estimatedRemainingSeconds"] == 0
    assert trainer.refused == []


def test_it_sends_as_often_as_kubeflow_asks_for(environ: dict[str, str], trainer: Trainer, clock: Clock) -> None:
    status = observer(environ, clock)
    for step in range(100):
        status.elastic_observe(progress(step))
        clock.now += 0.125
    assert [taken["metrics"][0]["value"] for taken in trainer.taken] == ["0", "40", "80"]
    assert "progressPercentage" not in trainer.taken[0], "nobody said how many steps there are"


def test_only_the_node_of_rank_0_sends(environ: dict[str, str], trainer: Trainer, clock: Clock) -> None:
    status = observer(environ, clock, members=("other", "me"))
    status.elastic_observe(progress(1))
    assert trainer.taken == []
    status.elastic_round_starts(SimpleNamespace(members=["me"]))  # type: ignore[arg-type]
    status.elastic_observe(progress(2))
    assert len(trainer.taken) == 1, "after the other one is lost"


def test_the_token_is_read_again_each_time(environ: dict[str, str], trainer: Trainer, clock: Clock) -> None:
    status = observer(environ, clock)
    status.elastic_observe(progress(1))
    trainer.token = "token-2"
    Path(environ[TOKEN]).write_text(trainer.token, encoding="ascii")
    clock.now += 5
    status.elastic_observe(progress(2))
    assert len(trainer.taken) == 2


@pytest.mark.parametrize("code", [302, 403, 404, 422, 500])
def test_a_refusal_is_told_once_and_taken_up_again(
    environ: dict[str, str], trainer: Trainer, clock: Clock, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    status = observer(environ, clock)
    trainer.code = code
    for step in range(100):
        status.elastic_observe(progress(step))
        clock.now += 1
    assert trainer.refused == [code] * 4, "every 30 s"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"the TrainJob's progress is not shown: the server answers {code}: the reason. The training goes on." in said
    assert "token-1" not in said
    status.elastic_observe(DONE)
    assert len(trainer.refused) == 4, "the end does not wait for a server that refuses"
    trainer.code, clock.now = 200, clock.now + 30
    status.elastic_observe(progress(100))
    assert len(trainer.taken) == 1
    assert "the TrainJob's progress is shown again." in capsys.readouterr().err


def test_a_server_of_another_authority_gets_no_token(
    environ: dict[str, str], trainer: Trainer, clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    observer(environ, clock).elastic_observe(progress(1))
    assert (trainer.taken, trainer.refused) == ([], [])
    assert "certificate verify failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (URL, "http://127.0.0.1:1/status", "is not a URL that begins with https://"),
        (URL, "https://127.0.0.1:1/status", "Connection refused"),
        (URL, "https://name.invalid/status", "gaierror"),
        (URL, "https://127.0.0.1:port/status", "ValueError"),
        (CA_CERT, "/nowhere/ca.crt", "FileNotFoundError"),
        (TOKEN, "/nowhere/token", "FileNotFoundError"),
    ],
)
def test_an_unreachable_server_costs_one_line(
    environ: dict[str, str], clock: Clock, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    status = observer({**environ, name: value}, clock)
    for step in range(3):
        status.elastic_observe(progress(step))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
    assert said.startswith("elastic: warning: ")


def test_outside_a_trainjob_it_does_nothing(clock: Clock) -> None:
    status = observer({}, clock)
    status.elastic_observe(progress(1))
    assert Server.read({URL: "https://x/", CA_CERT: "ca.crt"}) is None
    TrainJobStatus({STEPS: "many"})  # it is not read where it is not used


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_steps_is_refused(environ: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of steps"):
        TrainJobStatus({**environ, STEPS: text})


def test_percentages_stay_within_what_the_crd_takes() -> None:
    training = Training(steps=10, step=25, steps_per_s=1e-9)
    assert training.status(0)["progressPercentage"] == 100
    assert Training(steps=10**9, step=10**9 - 1).status(0)["progressPercentage"] == 99
    assert Training(steps=10**9, step=1, steps_per_s=1e-9).status(0)["estimatedRemainingSeconds"] == 2**31 - 1
    assert Training(step=None, metrics={"loss": float("nan")}).status(0)["metrics"] == [
        {"name": "loss", "value": "nan"}
    ]


SCRIPT = """
import time, os
for step in range(int(os.environ["TEST_STEPS"])):
    print(f"step: {step}  loss:  {1 / (step + 1):.5f}", flush=True)
    time.sleep(0.01)
"""


def run(tmp_path: Path, environ: dict[str, str], *, steps: int) -> subprocess.CompletedProcess[str]:
    """A whole run of one worker that prints as torchtitan does."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    pattern = r"--progress_pattern=step: (?P<step>\d+)  loss:  (?P<loss>\S+)"
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--no_warm_start", pattern, "train.py"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_"))}
    return subprocess.run(
        command, cwd=tmp_path, env={**inherited, **environ, "TEST_STEPS": str(steps)}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_run_shows_its_progress(environ: dict[str, str], trainer: Trainer, tmp_path: Path) -> None:
    done = run(tmp_path, {**environ, STEPS: "100"}, steps=100)
    assert done.returncode == 0, done.stderr
    last = trainer.wait_for(2)[-1]
    assert last["progressPercentage"] == 100
    assert {metric["name"] for metric in last["metrics"]} >= {"step", "loss", "nodes", "workers", "restarts"}


@pytest.mark.slow
def test_a_server_that_never_answers_does_not_disturb_a_run(tmp_path: Path, authority: trustme.CA) -> None:
    import socket

    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("token", encoding="ascii")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it is connected to, and says nothing
        url = f"https://127.0.0.1:{silent.getsockname()[1]}{PATH}"
        environ = {URL: url, CA_CERT: str(tmp_path / "ca.crt"), TOKEN: str(tmp_path / "token")}
        done = run(tmp_path, environ, steps=5)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step: ") == 5
