from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import pytest

from elastic_core.errors import UsageError
from elastic_core.events import Event, Level
from elastic_core.plugins.manager import Plugins
from elastic_metrics.prometheus import EndpointError, Place, Prometheus

Start = Callable[..., None]
End = Callable[[], None]
Hear = Callable[[str], Event]

IMPORTS = """
import sys
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core import JoinedRun
from elastic_core.plugins.manager import load
from elastic_core.config.program import Program, ProgramKind
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions

config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"))
versions = Versions(python="3.11")
node = NodeInfo(node_id="n", host="h", host_id="h", slot=0, local_world_size=1, role="", versions=versions)
plugins = load(config)
plugins.publish(Event("joining", ""))
plugins.run_starts(JoinedRun(config=config, run_uid="uid", node=node, look=exit))
plugins.publish(Event("round_started", ""))
assert plugins.close(60) == ()
assert plugins.implementations("elastic_run_starts")
print(*(name for name in ("elastic_metrics.prometheus", "prometheus_client", "http.server") if name in sys.modules))
"""


def warnings(heard: list[Event]) -> list[str]:
    return [event.message for event in heard if event.level >= Level.WARNING]


def read(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as reply:
        return str(reply.read(), "utf-8")


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"ELASTIC_METRICS_PORT": ""}, None),
        ({"ELASTIC_METRICS_PORT": "0"}, None),
        ({"ELASTIC_METRICS_ADDRESS": "0.0.0.0"}, None),
        ({"ELASTIC_METRICS_PORT": "9400"}, "127.0.0.1:9400"),
        ({"ELASTIC_METRICS_PORT": " 9400\n"}, "127.0.0.1:9400"),
        ({"ELASTIC_METRICS_PORT": "9400", "ELASTIC_METRICS_ADDRESS": ""}, "127.0.0.1:9400"),
        ({"ELASTIC_METRICS_PORT": "65535", "ELASTIC_METRICS_ADDRESS": "10.0.0.1"}, "10.0.0.1:65535"),
        ({"ELASTIC_METRICS_PORT": "1", "ELASTIC_METRICS_ADDRESS": "::"}, "[::]:1"),
    ],
)
def test_there_is_an_endpoint_only_where_a_port_is_named(environ: dict[str, str], place: str | None) -> None:
    found = Place.read(environ)
    assert (None if found is None else str(found)) == place


@pytest.mark.parametrize("text", ["http", "-1", "65536", "94.0", "\u0665", "9400-9410", "1" * 5000])
def test_a_text_that_is_no_port_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        Place.read({"ELASTIC_METRICS_PORT": text})
    assert refused.value.message == f"ELASTIC_METRICS_PORT={text!r} is not a port."


def test_agents_of_one_host_take_the_ports_after_the_first() -> None:
    assert [Place("::1", 65534).of_slot(slot).port for slot in (0, 1)] == [65534, 65535]
    with pytest.raises(EndpointError, match="leaves no port to agent 3 of this host"):
        Place("::1", 65534).of_slot(2)


def test_the_endpoint_opens_with_the_run_tells_what_happens_and_closes_with_it(
    plugins: Plugins, start: Start, end: End, port: int
) -> None:
    plugins.register("prometheus", Prometheus({"ELASTIC_METRICS_PORT": str(port - 1)}))
    opened = f"http://127.0.0.1:{port}/metrics"
    with pytest.raises(OSError, match="refused"):
        read(opened)
    plugins.publish(Event("joining", ""))
    start(slot=1)
    while 'elastic_events_total{event="joining",level="info"} 1.0' not in _patiently(opened):
        pass
    end()
    with pytest.raises(OSError, match="refused"):
        read(opened)


def test_an_agent_that_enters_the_job_as_another_node_keeps_its_endpoint(
    plugins: Plugins, start: Start, end: End, port: int, heard: list[Event]
) -> None:
    plugins.register("prometheus", Prometheus({"ELASTIC_METRICS_PORT": str(port)}))
    start()
    start()
    plugins.publish(Event("joining", ""))
    while 'elastic_events_total{event="joining",level="info"} 1.0' not in _patiently(
        f"http://127.0.0.1:{port}/metrics"
    ):
        pass
    end()
    assert warnings(heard) == []


def _patiently(url: str) -> str:
    """The page, or '' without a listener; the test's own time limit is the deadline."""
    try:
        return read(url)
    except OSError:
        return ""


def test_a_port_that_is_taken_costs_one_warning_that_says_what_to_do(
    plugins: Plugins, start: Start, end: End, hear: Hear, heard: list[Event]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        plugins.register("prometheus", Prometheus({"ELASTIC_METRICS_PORT": str(port)}))
        start()
        hear("observer_switched_off")
        plugins.publish(Event("round_started", "round 1"))
        end()
    (warning,) = warnings(heard)
    assert f"There are no metrics at 127.0.0.1:{port}: Address already in use. Choose another" in warning
    assert heard[-1].name == "round_started"


@pytest.mark.parametrize(
    ("ask", "imported"), [(False, "elastic_metrics.prometheus"), (True, "prometheus_client http.server")]
)
def test_prometheus_client_is_imported_only_where_a_port_is_named(ask: bool, imported: str, port: int) -> None:
    environ = {"ELASTIC_METRICS_PORT": str(port)} if ask else {}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().endswith(imported), done.stderr
