from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastic_metrics.endpoint import Identity, MetricsServer
from elastic_metrics.prometheus import BUCKETS, Measures, Recoveries

WHO = Identity(job='job "1"', run="uid", node="node1 (agent 2)", role="trainer", restarts_allowed=3)
LATER = Measures(
    round=7,
    nodes=2,
    world_size=16,
    workers_running=8,
    restarts_spent=2,
    restarts={"failure": 2, "resize": 4},
    worker_failures=1,
    recoveries={"failure": Recoveries().plus(0.2).plus(3.0), "resize": Recoveries().plus(1e6)},
    events={("round_started", "INFO"): 7},
)


class Said:
    """The text of the endpoint, which may change."""

    def __init__(self) -> None:
        self.measures = Measures()


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def endpoint(said: Said) -> Iterator[MetricsServer]:
    endpoint = MetricsServer("127.0.0.1", 0, WHO, lambda: said.measures)
    yield endpoint
    endpoint.close()


def scrape(port: int, host: str = "127.0.0.1") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{host}:{port}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (labelled("elastic_run_info", job_id='job "1"', run="uid", node="node1 (agent 2)", role="trainer"), 1),
        (labelled("elastic_round"), 7),
        (labelled("elastic_nodes"), 2),
        (labelled("elastic_world_size"), 16),
        (labelled("elastic_workers_running"), 8),
        (labelled("elastic_restarts_spent"), 2),
        (labelled("elastic_restarts_allowed"), 3),
        (labelled("elastic_restarts_total", cause="failure"), 2),
        (labelled("elastic_restarts_total", cause="resize"), 4),
        (labelled("elastic_worker_failures_total"), 1),
        (labelled("elastic_recovery_seconds_count", cause="failure"), 2),
        (labelled("elastic_recovery_seconds_sum", cause="failure"), 3.2),
        (labelled("elastic_recovery_seconds_bucket", cause="failure", le="0.1"), 0),
        (labelled("elastic_recovery_seconds_bucket", cause="failure", le="0.25"), 1),
        (labelled("elastic_recovery_seconds_bucket", cause="failure", le="2.5"), 1),
        (labelled("elastic_recovery_seconds_bucket", cause="failure", le="5.0"), 2),
        (labelled("elastic_recovery_seconds_bucket", cause="failure", le="+Inf"), 2),
        (labelled("elastic_recovery_seconds_bucket", cause="resize", le=str(BUCKETS[-1])), 0),
        (labelled("elastic_recovery_seconds_bucket", cause="resize", le="+Inf"), 1),
        (labelled("elastic_events_total", event="round_started", level="info"), 7),
    ],
)
def test_a_scrape_finds_each_number(
    endpoint: MetricsServer, said: Said, sample: tuple[str, frozenset[tuple[str, str]]], value: float
) -> None:
    said.measures = LATER
    assert scrape(endpoint.port)[sample] == value


def test_counters_are_there_from_the_start_so_that_the_first_restart_is_a_change(endpoint: MetricsServer) -> None:
    found = scrape(endpoint.port)
    assert found[labelled("elastic_restarts_total", cause="node_lost")] == 0
    assert found[labelled("elastic_recovery_seconds_count", cause="node_lost")] == 0


def test_nothing_but_the_run_is_told(endpoint: MetricsServer) -> None:
    assert {name for name, _ in scrape(endpoint.port) if not name.startswith("elastic_")} == set()


def test_each_scrape_finds_what_is_known_by_then(endpoint: MetricsServer, said: Said) -> None:
    before = scrape(endpoint.port)
    said.measures = LATER
    after = scrape(endpoint.port)
    assert (before[labelled("elastic_round")], after[labelled("elastic_round")]) == (0, 7)


def test_a_client_that_stalls_holds_up_nobody(endpoint: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_metrics.endpoint._Handler.timeout", None)  # it would be turned away before long
    with socket.create_connection(("127.0.0.1", endpoint.port)) as silent:
        silent.sendall(b"GET /met")
        assert scrape(endpoint.port)[labelled("elastic_round")] == 0


def test_a_client_that_takes_too_long_is_turned_away(endpoint: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_metrics.endpoint._Handler.timeout", 0.01)
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as silent:
        silent.sendall(b"GET /met")
        assert silent.recv(1) == b""


def test_a_client_that_hangs_up_is_not_worth_a_word(endpoint: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    rude = socket.create_connection(("127.0.0.1", endpoint.port))
    rude.sendall(b"GET /met")
    rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    rude.close()
    scrape(endpoint.port)  # came after it, so that its thread is there by now, or over
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert capfd.readouterr().err == ""


def test_an_ipv6_address_will_do() -> None:
    endpoint = MetricsServer("::1", 0, WHO, Measures)
    assert scrape(endpoint.port, "[::1]")[labelled("elastic_round")] == 0
    endpoint.close()


def test_only_the_address_that_was_given_is_listened_at(endpoint: MetricsServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", endpoint.port), timeout=60).close()


def test_a_port_that_is_taken_is_an_os_error(endpoint: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer("127.0.0.1", endpoint.port, WHO, Measures)


def test_closing_ends_the_thread_and_frees_the_port() -> None:
    threads = threading.active_count()
    first = MetricsServer("127.0.0.1", 0, WHO, Measures)
    first.close()
    assert threading.active_count() == threads
    second = MetricsServer("127.0.0.1", first.port, WHO, Measures)
    second.close()
