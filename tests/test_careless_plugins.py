"""Plugins with mistakes in them, whole jobs: the job goes on without, or the message says whose mistake it is."""

from __future__ import annotations

import json
import os
import socket
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig

from elastic_core.exit_codes import ExitCode

POLICIES = """
    from elastic_core import hookimpl
    from elastic_core.incidents import Action, Verdict

    def answering(*verdict):
        class Policy:
            @hookimpl
            def elastic_judge_failure(self):
                return Verdict(*verdict)

        return Policy

    Number = answering(Action.GIVE_UP, 5)
    Text = answering("give_up", "no such action")
    Long = answering(Action.GIVE_UP, "x" * 400_000)
    Plain = answering(2, "a number is an action, too")
"""
BACKENDS = """
    from pathlib import Path

    from elastic_core import RendezvousOptions, hookimpl
    from elastic_rdzv_file.backend import FileBackend


    def raising(method):
        def broken(self, *_, **__):
            raise KeyError("oops in my driver")

        class Careless(FileBackend):
            def connect(self):
                return Careless(self._store, self._poll_interval)

        class Plugin:
            @hookimpl
            def elastic_rendezvous_options(self):
                return RendezvousOptions(endpoint="FOLDER")

            @hookimpl
            def elastic_make_rendezvous(self, params):
                return Careless.open(Path(params.endpoint), params.run_id)

        setattr(Careless, method, broken)
        return Plugin


    Heartbeat, Wait, Enter = map(raising, ("heartbeat", "wait", "enter"))
"""
EXPLAINERS = """
    import threading

    from elastic_core import hookimpl
    from elastic_core.incidents import Explanation, FailureClass

    def explaining(explain):
        class Plugin:
            elastic_explain_failure = staticmethod(hookimpl(explain))

        return Plugin

    def licences(incident, text):
        if "no licence" in text:
            return Explanation(
                failure_class=FailureClass.INFRASTRUCTURE, name="no licence", advice="Ask Ada for more."
            )

    Licences = explaining(licences)
    Slow = explaining(lambda: threading.Event().wait())
    Raising = explaining(lambda: {}["licence"])
    Wrong = explaining(lambda: "no licence")
"""
CHATTY = """
    import logging

    from elastic_core import hookimpl

    @hookimpl
    def elastic_configure(config):
        logging.getLogger("driver.client").warning("connection dropped")
"""
ENTRY_POINTS = """
    [elastic.plugins]
    number = policies:Number
    text = policies:Text
    long = policies:Long
    plain = policies:Plain
    licences = explainers:Licences
    slow = explainers:Slow
    raising = explainers:Raising
    wrong = explainers:Wrong
    chatty = chatty

    [elastic.rendezvous]
    heartbeat = backends:Heartbeat
    wait = backends:Wait
    enter = backends:Enter
"""


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Callable[..., Agent]:
    """Starts ``elastic run`` where the plugins are installed."""
    site = tmp_path / "site-packages"
    information = site / "careless-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "policies.py").write_text(textwrap.dedent(POLICIES))
    (site / "backends.py").write_text(textwrap.dedent(BACKENDS))
    (site / "explainers.py").write_text(textwrap.dedent(EXPLAINERS))
    (site / "chatty.py").write_text(textwrap.dedent(CHATTY))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: careless\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return lambda *arguments: rig.run(*arguments, env={"PYTHONPATH": path})


def test_policies_whose_verdicts_cannot_be_followed_abstain(run: Callable[..., Agent]) -> None:
    agent = run("--plugin=number", "--plugin=text", "--max_restarts=1", "--no_python", "false")
    assert agent.exit_code() == ExitCode.JOB_FAILED
    for name, fault in (("number", "reason is 5, which is not a str"), ("text", "action is 'give_up', which is not")):
        agent.wait_for(rf"The plugin '{name}' raised in elastic_judge_failure: .*{fault}.* It abstains\.", count=2)
    agent.wait_for("restart 1 of 1")
    assert "store is lost" not in agent.output


@pytest.mark.parametrize("name", ["long", "plain"])
def test_a_verdict_is_followed_however_it_is_spelled(run: Callable[..., Agent], name: str) -> None:
    agent = run(f"--plugin={name}", "--max_restarts=3", "--no_python", "false")
    assert agent.exit_code() == ExitCode.JOB_FAILED
    assert agent.wait_for("the job has failed: (x{500}|a number is an action, too)$")
    assert "round 2" not in agent.output


UNLICENSED = ("--no_python", "sh", "-c", "echo 'RuntimeError: no licence' >&2; exit 1")


@pytest.mark.parametrize("policies", [(), ("--no_plugin=policies",)], ids=["with elastic-policies", "core alone"])
def test_a_plugin_explains_a_failure(run: Callable[..., Agent], policies: Sequence[str], tmp_path: Path) -> None:
    logs = f"--log_dir={tmp_path}"
    agent = run("--plugin=licences", *policies, logs, "--max_restarts=0", *UNLICENSED)
    assert agent.exit_code() == ExitCode.REQUEUE
    agent.wait_for(r"hint    Ask Ada for more\.$")
    (verdict,) = tmp_path.rglob("verdict.json")
    incident = json.loads(verdict.read_text())["incident"]
    assert (incident["class"], incident["known_failure"]) == ("infrastructure", "no licence")


def test_plugins_that_cannot_explain_a_failure_delay_nothing(run: Callable[..., Agent]) -> None:
    agent = run("--plugin=slow", "--plugin=raising", "--plugin=wrong", "--max_restarts=1", *UNLICENSED)
    assert agent.exit_code() == ExitCode.JOB_FAILED
    agent.wait_for(r"The plugin 'slow' did not explain a failure within 0\.5 s\.", count=1)
    agent.wait_for(r"The plugin 'raising' raised in elastic_explain_failure: KeyError: 'licence'", count=2)
    agent.wait_for("The plugin 'wrong' raised in elastic_explain_failure: .*'no licence' is neither an Expl", count=2)
    agent.wait_for("restart 1 of --max_restarts=1")


def test_without_a_plugin_failures_are_not_explained(run: Callable[..., Agent], tmp_path: Path) -> None:
    full = ("--no_python", "sh", "-c", "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1")
    agent = run("--no_plugin=policies", f"--log_dir={tmp_path}", "--max_restarts=1", *full)
    assert agent.exit_code() == ExitCode.JOB_FAILED
    agent.wait_for("what    exited with code 1")
    assert "hint" not in agent.output
    (verdict,) = tmp_path.rglob("verdict.json")
    incident = json.loads(verdict.read_text())["incident"]
    assert (incident["class"], incident["known_failure"]) == ("unknown", None)


def test_a_line_that_a_driver_logs_begins_like_the_agents_own_lines(run: Callable[..., Agent]) -> None:
    agent = run("--plugin=chatty", "--no_python", "true")
    assert agent.exit_code() == 0
    host = socket.gethostname().partition(".")[0]
    agent.wait_for(rf"^\[elastic\] \d\d:\d\d:\d\d {host}: driver\.client: connection dropped$")


@pytest.mark.parametrize("method", ["enter", "heartbeat", "wait"])
def test_a_backend_that_raises_what_it_must_not_is_named(
    run: Callable[..., Agent], tmp_path: Path, method: str
) -> None:
    flags = (f"--rdzv_backend={method}", f"--rdzv_endpoint={tmp_path}", "--rdzv_id=job")
    agent = run(*flags, WORKERS / "sleeper.py")
    assert agent.exit_code() == ExitCode.UNREACHABLE
    agent.wait_for(
        rf"^elastic: error: The rendezvous backend '{method}' \(careless 1\.0\) raised in {method}: "
        r"KeyError: 'oops in my driver'\.$"
    )
    agent.wait_for(r"^Raised at .*backends\.py:\d+\. A backend may raise only RendezvousConnectionError and ")
    assert "Traceback" not in agent.output
    assert "defect of Elastic" not in agent.output
