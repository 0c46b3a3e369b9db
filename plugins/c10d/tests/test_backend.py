"""The embedded store passes the suite, over one connection and over many, and says what is wrong when it is gone."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, StoreLostError, UsageError
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_c10d.backend import C10dBackend
from elastic_rdzv_c10d.client import StoreClient
from elastic_rdzv_c10d.endpoint import Address
from elastic_rdzv_c10d.plugin import Options, elastic_make_rendezvous
from elastic_rdzv_c10d.records import KEPT_BELLS, ROW_CHANGED, UNWRITTEN, Keys
from elastic_rdzv_c10d.static import elastic_make_rendezvous as make_static
from elastic_testing.backend_conformance import (
    BackendConformance,
    LineConformance,
    PlantConformance,
    ProcessConformance,
    SilentLineConformance,
)
from elastic_testing.connections import MakeBackend, long_wait, woken
from elastic_testing.faults import LossyProxy
from elastic_testing.race import PATIENCE, background
from elastic_testing.run_suite import Plant, PlantRow

FIRST = Link(1, "first")
READ_TIMEOUT = 20.0
"""Seconds that an answer may take: far more than any does."""


def parameters(port: int, run_id: str = "job", *, host: str = "127.0.0.1", **config: str) -> RendezvousParameters:
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return RendezvousParameters(
        backend="c10d", endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=2, config=config
    )


def opened(port: int, run_id: str) -> C10dBackend:
    """As an agent opens it; picklable, for other processes."""
    return elastic_make_rendezvous(parameters(port, run_id))


def put(port: int, key: str, record: bytes) -> bool:
    """Write past the backend; whether the store took it."""
    with closing(StoreClient(Address(socket.AF_INET, "127.0.0.1", port), READ_TIMEOUT)) as client:
        try:
            client.put(key, record)
            return client.exist(key)
        except RendezvousConnectionError:  # TCPStore hangs up on who sends so much
            return False


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCPStore asks for the name of its peer with each connection; a name server may not answer so many in time."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.mark.usefixtures("resolver")
class TestC10dBackend(BackendConformance, ProcessConformance, PlantConformance):
    @pytest.fixture
    def make_backend(self, port: int) -> MakeBackend:
        return partial(opened, port)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend

    @pytest.fixture
    def plant(self, port: int) -> Plant:
        return lambda run_id, index, record: put(port, Keys(run_id).ledger(index), record)

    @pytest.fixture
    def plant_row(self, port: int) -> PlantRow:
        def planted(run_id: str, node_id: str, record: bytes) -> bool:
            with closing(StoreClient(Address(socket.AF_INET, "127.0.0.1", port), READ_TIMEOUT)) as client:
                serial = client.count(Keys(run_id).node(node_id))
            return put(port, Keys(run_id).row(serial), record)

        return planted


def test_the_static_store_forgets_what_workers_wrote_and_keeps_what_jobs_did(port: int) -> None:
    node = replace(parameters(port), node_rank=0)
    with closing(make_static(node)) as host, closing(host.connect()) as other:
        assert host.workers_store == other.workers_store == ("127.0.0.1", port)
        host.enter("node", b"row")
        assert host.append(ORIGIN, FIRST, b"entry")
        assert put(port, "default_pg/0//0", b"an address of an old round")
        other.forget_workers()
        assert host.read(1) == b"entry"
        assert [row.value for row in host.roster()] == [b"row"]
        with closing(StoreClient(Address(socket.AF_INET, "127.0.0.1", port), READ_TIMEOUT)) as client:
            assert not client.exist("default_pg/0//0")


@pytest.mark.usefixtures("resolver")
class TestC10dBackendOverABadLine(LineConformance, SilentLineConformance):
    @pytest.fixture
    def line(self, host: C10dBackend, port: int) -> Iterator[LossyProxy]:
        proxy = LossyProxy("127.0.0.1", port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def make_backend(self, line: LossyProxy) -> MakeBackend:
        def guest(run_id: str) -> C10dBackend:
            return C10dBackend(StoreClient(Address(socket.AF_INET, "127.0.0.1", line.port), READ_TIMEOUT), run_id)

        return guest


@pytest.fixture
def host(port: int) -> Iterator[C10dBackend]:
    backend = opened(port, "job")
    yield backend
    backend.close()


@pytest.fixture
def guest(host: C10dBackend, port: int) -> Iterator[C10dBackend]:
    backend = opened(port, "job")
    yield backend
    backend.close()


def server_of(backend: C10dBackend) -> int:
    """The process that holds the store."""
    assert backend._server is not None
    return backend._server.pid


def test_the_first_on_the_host_holds_the_store_and_the_others_find_it(host: C10dBackend, guest: C10dBackend) -> None:
    assert (host.hosting, guest.hosting) == (True, False)
    assert host.append(ORIGIN, FIRST, b"hello")
    assert guest.read(1) == b"hello"
    assert host.embedded
    assert guest.embedded


def test_a_waiter_for_the_next_entry_asks_for_no_other(host: C10dBackend, port: int) -> None:
    entries = [Link(index, f"entry {index}") for index in range(1, 5)]
    for prev, entry in pairwise([ORIGIN, *entries[:3]]):
        host.append(prev, entry, b"")
    with closing(LossyProxy("127.0.0.1", port)) as line:
        waiter = C10dBackend(StoreClient(Address(socket.AF_INET, "127.0.0.1", line.port), READ_TIMEOUT), "job")
        before = line.requests
        waiting = long_wait(waiter, Cursor(3), roster=False)
        host.append(entries[2], entries[3], b"the entry")
        assert woken(waiting, "append()").head == 4
        assert waiter.read(4) == b"the entry"
        assert line.requests - before == 2, "the wait, and the entry"
        waiter.close()


def test_an_ipv6_endpoint_is_served_and_found() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
        port = probe.getsockname()[1]
    host, guest = (elastic_make_rendezvous(parameters(port, host="::1")) for _ in range(2))
    assert host.append(ORIGIN, FIRST, b"hello")
    assert guest.read(1) == b"hello"
    guest.close()
    host.close()


def test_every_connection_of_the_host_knows_that_it_holds_the_store(host: C10dBackend) -> None:
    second = host.connect()
    assert second.hosting
    second.close()
    assert host.append(ORIGIN, FIRST, b"the store is still there")


def test_the_store_listens_at_the_endpoints_address_and_at_no_other(host: C10dBackend, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_the_store_ends_with_the_connection_that_brought_it(port: int) -> None:
    host = opened(port, "job")
    host.close()
    host.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server_of(host), 0)


def test_the_store_survives_what_a_terminal_or_a_scheduler_sends_to_every_process(
    host: C10dBackend, guest: C10dBackend
) -> None:
    assert os.getsid(server_of(host)) != os.getsid(0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(server_of(host), signum)
    assert guest.append(ORIGIN, FIRST, b"still there")


def test_the_store_keeps_no_descriptor_of_its_agent_open(port: int) -> None:
    inherited, ours = os.pipe()
    os.set_inheritable(ours, True)
    host = opened(port, "job")
    os.close(ours)
    assert os.read(inherited, 1) == b""
    os.close(inherited)
    host.close()


def test_the_store_dies_with_an_agent_that_is_killed(port: int) -> None:
    script = (
        "import sys, test_backend\n"
        f"backend = test_backend.opened({port}, 'job')\n"
        "print(test_backend.server_of(backend), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        store = os.pidfd_open(int(agent.stdout.readline()))
        guest = opened(port, "job")
        waiting = long_wait(guest, Cursor(), roster=True)
        agent.kill()
        with pytest.raises(RendezvousConnectionError, match="is gone, and with it the agent that hosts it"):
            waiting.result(PATIENCE)
        with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port} is "):
            guest.read(1)
        with pytest.raises(StoreLostError, match=f"127.0.0.1:{port} is gone"):
            guest.connect()
        guest.close()
        poller = select.poll()
        poller.register(store, select.POLLIN)
        assert poller.poll(PATIENCE * 1000), "the store's process outlives its agent"
    os.close(store)


def test_a_store_that_dies_while_one_connects_is_gone_at_once_and_holds_up_nobody_else(
    host: C10dBackend, port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dying = Address(socket.AF_INET, "127.0.0.1", silent.getsockname()[1])
        connecting = background(partial(StoreClient, dying, read_timeout=10 * PATIENCE))
        silent.accept()[0].close()  # it has knocked
        silent.accept()[0].close()
    with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{dying.port} is gone"):
        connecting.result(PATIENCE)
    with closing(host.connect()) as other:  # while TCPStore still tries the first address
        assert other.read(1) is None


def stop(pid: int) -> None:
    """Stop a process; its threads go on for a moment after the signal, each by itself."""
    os.kill(pid, signal.SIGSTOP)
    deadline, threads = time.monotonic() + 10, Path(f"/proc/{pid}/task")
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in threads.glob("*/stat")):
        assert time.monotonic() < deadline, f"process {pid} runs on after SIGSTOP"
        time.sleep(0.01)


def test_a_store_that_stops_answering_is_given_up_on_after_read_timeout(port: int) -> None:
    host = elastic_make_rendezvous(parameters(port, read_timeout="1"))
    stop(server_of(host))
    with pytest.raises(RendezvousConnectionError, match="has not answered for 1 s"):
        host.read(1)
    host.close()


def test_a_listener_that_is_no_store_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_rdzv_c10d.client.LEAST_PATIENCE", 1.0)
    silent = pytest.raises(RendezvousConnectionError, match=f"listens at 127.0.0.1:{port} has not answered for 1 s")
    with socket.create_server(("127.0.0.1", port)), silent:
        StoreClient(Address(socket.AF_INET, "127.0.0.1", port), 1.0, 1.0)


def test_a_port_without_a_listener_is_an_error_of_its_own(port: int) -> None:
    with pytest.raises(RendezvousConnectionError, match=f"No server listens at 127.0.0.1:{port}, after 0.2 s"):
        elastic_make_rendezvous(parameters(port, is_host="false", connect_timeout="0.2"))


def test_jobs_share_a_store_and_nothing_else(host: C10dBackend, port: int) -> None:
    other = opened(port, "job/2")
    assert host.append(ORIGIN, FIRST, b"of job")
    assert other.read(1) is None
    other.close()


@pytest.mark.parametrize("garbage", [b"", b"no line break", b"\n" + b"x" * 1_000_000])
def test_an_entry_that_is_not_ours_is_reported_and_not_believed(host: C10dBackend, port: int, garbage: bytes) -> None:
    intruder = StoreClient(Address(socket.AF_INET, "127.0.0.1", port), 10.0)
    intruder.put(Keys("job").ledger(1), garbage)
    assert intruder.peek(Keys("job").ledger(1)) == garbage
    with pytest.raises(RendezvousStateError, match="The store holds"):
        host.read(1)
    intruder.close()


def test_the_environment_that_workers_inherit_stays_as_it_was() -> None:
    script = (
        "import os\n"
        "before = dict(os.environ)\n"
        "import elastic_rdzv_c10d.backend, sys\n"
        "assert 'torch' in sys.modules\n"
        "changed = dict(os.environ).items() ^ before.items()\n"
        "assert not changed, changed\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_plugin_is_found_by_its_entry_point_and_imports_no_torch_until_it_is_used() -> None:
    script = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "[point] = entry_points(group='elastic.rendezvous', name='c10d')\n"
        "options = point.load().elastic_rendezvous_options()\n"
        "assert set(options.conf) == {'is_host', 'read_timeout', 'connect_timeout'}, options\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def counted(monkeypatch: pytest.MonkeyPatch, store: C10dBackend, *methods: str) -> list[str]:
    """The questions that one connection asks from now on."""
    asked: list[str] = []
    client = store._client

    def counting(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def ask(*arguments: object) -> object:
            asked.append(name)
            return method(*arguments)

        return ask

    for name in methods:
        monkeypatch.setattr(client, name, counting(name, getattr(client, name)))
    return asked


def test_a_look_for_an_entry_that_is_not_there_wakes_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing a missing key wakes every waiter: a thousand that join would wake a thousand, each."""
    with closing(opened(port, "job")) as store, closing(store.connect()) as waiter:
        store.append(ORIGIN, FIRST, b"entry")
        waiter.wait(Cursor(), roster=False, timeout=0)
        asked = counted(monkeypatch, waiter, "wait_for", "wait_and_get", "exist")
        waiting = long_wait(waiter, Cursor(1), roster=False)
        for _ in range(20):
            assert store.read(2) is None
        store.append(FIRST, Link(2, "second"), b"entry")
        woken(waiting, "append()")
        assert len(asked) <= 3, "one sleep, and whether it is true, and all"


def test_a_waiter_that_is_woken_for_nothing_waits_on(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as waiter:
        waiting = long_wait(waiter, Cursor(), roster=False)
        assert store._client.peek(Keys("job").ledger(1)) is None, "which wakes whoever waits for it"
        store.append(ORIGIN, FIRST, b"entry")
        assert woken(waiting, "append()").head == 1
        assert waiter.read(1) == b"entry"


def test_a_wait_whose_time_is_over_before_it_is_answered_looks_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as waiter:
        assert store.append(ORIGIN, FIRST, b"entry")
        monkeypatch.setattr(waiter._client, "wait_and_get", lambda key, timeout: UNWRITTEN)
        assert waiter.wait(Cursor(), roster=False, timeout=0.001).head == 1
        assert store.append(FIRST, Link(2, "second"), b"entry")
        assert waiter.wait(Cursor(1), roster=False, timeout=0.001).head == 2
        assert waiter.wait(Cursor(2), roster=False, timeout=0.001).head == 2


def test_a_store_does_not_grow_with_changes(port: int) -> None:
    with closing(opened(port, "job")) as host:
        host.enter("a", b"0")
        for revision in range(1, 2 * KEPT_BELLS):
            host.amend("a", revision, b"%d" % revision)
        names = host._client.names() or []
        assert len([name for name in names if "/change/" in name]) <= KEPT_BELLS + 1
        assert len(names) < KEPT_BELLS + 20


@pytest.mark.parametrize("near", [(1 << 62) - 2, ((1 << 30) - 1 << 32) + (1 << 32) - 2], ids=["rows", "changes"])
def test_the_count_of_changes_stays_in_range_and_wakes_waiters_all_the_same(port: int, near: int) -> None:
    with closing(opened(port, "job")) as host, closing(host.connect()) as waiter:
        host.enter("a", b"0")
        host._client.put(Keys("job").changes, b"%d" % near)
        for revision in range(1, 6):
            before = waiter.wait(Cursor(), roster=True, timeout=0)
            waiting = long_wait(waiter, before, roster=True)
            host.amend("a", revision, b"%d" % revision)
            assert woken(waiting, "an amendment") != before
        count = host._client.count(Keys("job").changes)
        assert count < (1 << 62) + 6 * ROW_CHANGED
        assert [row.revision for row in host.roster()] == [5]


def test_a_waiter_that_was_stopped_for_a_thousand_changes_finds_out_by_itself(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bell is deleted by the time at which it begins to wait for it."""
    monkeypatch.setattr("elastic_rdzv_c10d.backend.BELL_PATIENCE", 0.2)
    with closing(opened(port, "job")) as host, closing(host.connect()) as waiter:
        host.enter("a", b"0")
        before = waiter.wait(Cursor(), roster=True, timeout=0)
        wait_for = waiter._client.wait_for

        def stopped_before_it_waits(key: str, timeout: float) -> bool:
            monkeypatch.setattr(waiter._client, "wait_for", wait_for)
            for revision in range(1, KEPT_BELLS + 3):
                host.amend("a", revision, b"%d" % revision)
            assert not host._client.exist(key), "nothing would wake it"
            return wait_for(key, timeout)

        monkeypatch.setattr(waiter._client, "wait_for", stopped_before_it_waits)
        assert waiter.wait(before, roster=True, timeout=60) != before


def test_a_node_writes_its_row_without_looking_for_it(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(port, "job")) as store, closing(store.connect()) as writer:
        store.enter("node", b"entered")
        asked = counted(monkeypatch, writer, "peek", "swap_seen", "add", "put_all")
        writer.amend("node", 1, b"amended")
        assert asked == ["swap_seen", "add", "put_all"]
        assert [(row.revision, row.value) for row in store.roster()] == [(1, b"amended")]


def test_the_last_write_of_a_node_is_not_taken_for_the_value_that_is_there(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        store.enter("node", b"entered")
        other.amend("node", 2, b"newer")
        store.amend("node", 1, b"older")
        assert [row.value for row in store.roster()] == [b"newer"]
        store.amend("node", 3, b"newest")
        assert [row.value for row in store.roster()] == [b"newest"]
        other.remove("node")
        store.amend("node", 4, b"too late")
        assert store.roster() == []
        serial = store.enter("node", b"again")
        store.amend("node", 1, b"here")
        assert [(row.serial, row.value) for row in other.roster()] == [(serial, b"here")]


@pytest.mark.parametrize("unwritten", [(), (1,), (4, 5), (9,), tuple(range(1, 10))])
def test_rows_are_read_whoever_else_has_a_serial_and_no_row_yet(port: int, unwritten: tuple[int, ...]) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as reader:
        for serial in range(1, 10):
            if serial in unwritten:
                store._client.add(Keys("job").arrivals, 1)
            else:
                store.enter(f"node{serial}", b"row")
        written = [serial for serial in range(1, 10) if serial not in unwritten]
        assert [row.serial for row in reader.roster()] == written
        store.enter("last", b"row")
        assert [row.serial for row in reader.roster()] == [*written, 10]


LINKS = [ORIGIN, *(Link(index, f"entry {index}") for index in range(1, 6))]


def test_a_new_waiter_gets_the_newest_entry_in_one_answer(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        assert all(store.append(prev, entry, entry.id.encode()) for prev, entry in pairwise(LINKS))
        assert store._client.peek(Keys("job").newest) is not None, "which comes after it, over the same connection"
        asked = counted(monkeypatch, other, "swap_seen", "exist", "wait_and_get", "wait_for")
        assert other.wait(Cursor(), roster=False, timeout=0).head == 5
        assert other.read(5) == b"entry 5"
        assert len(asked) == 1
        assert other.wait(Cursor(), roster=False, timeout=60).head == 5


def test_whose_writer_could_not_leave_the_newest_entry_has_a_head_all_the_same(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        assert all(store.append(prev, entry, b"data") for prev, entry in pairwise(LINKS))
        store._client.delete(Keys("job").newest)
        assert other.wait(Cursor(), roster=False, timeout=0).head == 5
        assert other.wait(Cursor(), roster=False, timeout=60).head == 5


def test_a_newest_entry_that_is_behind_is_gone_on_from(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        assert all(store.append(prev, entry, b"data") for prev, entry in pairwise(LINKS[:3]))
        behind = store._client.peek(Keys("job").newest)
        assert behind is not None
        assert all(store.append(prev, entry, b"data") for prev, entry in pairwise(LINKS[2:]))
        store._client.put(Keys("job").newest, behind)
        assert store._client.peek(Keys("job").newest) == behind
        came = other.wait(Cursor(), roster=False, timeout=0)
        assert came.head == 2
        assert not other.append(LINKS[2], Link(3, "another"), b"data")
        while came.head < 5:
            came = other.wait(came, roster=False, timeout=60)
        assert other.read(5) == b"data"


def test_a_newest_entry_that_is_not_ours_is_not_believed(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        store._client.put(Keys("job").newest, b"nonsense")
        assert store._client.peek(Keys("job").newest) == b"nonsense"
        with pytest.raises(RendezvousStateError, match="nonsense"):
            other.wait(Cursor(), roster=False, timeout=0)


def test_a_heartbeat_or_a_serial_that_is_none_hides_nobody(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as other:
        for node_id in ("node", "other"):
            store.enter(node_id, b"row")
        for key in (Keys("job").heartbeat(1), Keys("job").node("node")):
            store._client.put(key, b"nonsense")
            store.heartbeat("other", 1)  # which is answered after it
            rows = other.roster(["node", "other"])
            assert [row.node_id for row in rows if not row.broken] == ["other"]
            assert ["nonsense" in row.broken for row in rows if row.broken] == [True]
            assert other.heartbeat("other", 1, "node").watched is None
        assert [row.node_id for row in other.roster() if not row.broken] == ["other"]


def test_of_many_rows_what_has_changed_is_read_anew(port: int) -> None:
    with closing(opened(port, "job")) as store, closing(opened(port, "job")) as leader:
        for number in range(20):
            store.enter(f"node{number}", b"row")
        before = leader.roster()
        store.amend("node7", 1, b"amended")
        store.heartbeat("node3", 5)
        store.remove("node5")
        expected = [
            replace(row, heartbeat=5) if row.node_id == "node3" else row for row in before if row.node_id != "node5"
        ]
        expected = [replace(row, revision=1, value=b"amended") if row.node_id == "node7" else row for row in expected]
        assert leader.roster() == expected


def test_of_a_few_rows_only_those_are_read(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(port, "job")) as store, closing(store.connect()) as reader:
        for number in range(20):
            store.enter(f"node{number}", b"row")
        store.amend("node7", 1, b"amended")
        store.heartbeat("node7", 5)
        asked = counted(monkeypatch, reader, "fetch")
        found = reader.roster(["node7", "node3", "stranger"])
        assert [(row.node_id, row.serial, row.revision, row.value, row.heartbeat) for row in found] == [
            ("node3", 4, 0, b"row", 0),
            ("node7", 8, 1, b"amended", 5),
        ]
        assert not asked


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ({}, Options()),
        ({"is_host": "True", "read_timeout": "1.5"}, Options(is_host=True, read_timeout=1.5)),
        ({"is_host": "0", "connect_timeout": "3"}, Options(is_host=False, connect_timeout=3.0)),
        ({"is_host": "maybe"}, None),
        ({"read_timeout": "soon"}, None),
        ({"read_timeout": "0"}, None),
        ({"connect_timeout": "inf"}, None),
        ({"connect_timeout": "nan"}, None),
    ],
)
def test_options_are_read_or_refused_with_their_value(conf: dict[str, str], options: Options | None) -> None:
    if options is None:
        [(key, value)] = conf.items()
        with pytest.raises(UsageError, match=f"{key}={value}"):
            Options.read(conf)
    else:
        assert Options.read(conf) == options
