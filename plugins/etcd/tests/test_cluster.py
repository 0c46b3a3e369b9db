"""Members come and go, watches end, leases run out, and no waiter misses a change."""

from __future__ import annotations

import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import etcd
import pytest
from backends import opened, opened_v2, parameters
from etcd_servers import Etcd, Three, administer, asked, running

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link, RendezvousBackend
from elastic_core.rendezvous.records import Entry
from elastic_rdzv_etcd import client, plugin
from elastic_rdzv_etcd.backend import EXPIRY, Keys
from elastic_rdzv_etcd.client import Held, View, Watch
from elastic_rdzv_etcd.connection import ATTEMPT
from elastic_testing.connections import chain, long_wait, woken

Open = Callable[[str, str, str], RendezvousBackend]
FIRST = Link(1, "first")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    cluster = Three(tmp_path)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(params=[opened, opened_v2], ids=["v3", "v2"])
def opener(request: pytest.FixtureRequest) -> Open:
    function: Open = request.param
    return function


def test_a_killed_leader_costs_its_clients_nothing_but_time(three: Three, opener: Open) -> None:
    writer, waiter = (opener(three.endpoint, "/elastic", "job") for _ in range(2))
    assert writer.enter("node", b"") == 1
    links = chain(4)
    for prev, entry in links[:2]:
        assert writer.append(prev, entry, b"before")
    waiting = long_wait(waiter, Cursor(2), roster=False)
    three.leader().stop()
    for prev, entry in links[2:]:
        assert writer.append(prev, entry, b"after")
    assert writer.heartbeat("node", 1, "node").head == 4
    try:
        assert woken(waiting, "append()").head > 2
    except RendezvousConnectionError:  # it is allowed to say that it lost its member, not to sleep on
        assert opener(three.endpoint, "/elastic", "job").read(4) == b"after"
    writer.close()
    waiter.close()


def freeze(pid: int) -> None:
    """Stop a child, all of whose threads stand still afterwards."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def test_a_frozen_member_is_left(three: Three, opener: Open) -> None:
    backends = [opener(member.endpoint + "," + three.endpoint, "/elastic", "job") for member in three.members]
    assert backends[0].append(ORIGIN, FIRST, b"data")
    leader = three.leader()
    frozen = next(member for member in three.members if member is not leader)
    freeze(frozen.pid)
    for backend in backends:
        assert backend.read(1) == b"data"
        backend.close()


def test_without_a_majority_there_is_an_error_and_afterwards_none(three: Three, prefix: str) -> None:
    backend = plugin.elastic_make_rendezvous(parameters(three.endpoint, read_timeout="1"))
    assert backend.append(ORIGIN, FIRST, b"data")
    gone = three.members[:2]
    for member in gone:
        member.stop()
    with pytest.raises(RendezvousConnectionError, match="No etcd answers, after"):
        backend.read(1)
    for member in gone:
        member.start()
    for member in gone:
        member.serving()
    assert backend.read(1) == b"data"
    backend.close()


def test_a_waiter_survives_a_restart_of_its_server(own_server: Etcd, opener: Open) -> None:
    writer, waiter = (opener(own_server.endpoint, "/elastic", "job") for _ in range(2))
    assert writer.append(ORIGIN, FIRST, b"1")
    waiting = long_wait(waiter, Cursor(1), roster=False)
    own_server.stop()
    own_server.start().serving()
    assert writer.append(FIRST, Link(2, "second"), b"2")
    try:
        assert woken(waiting, "append()").head == 2
    except RendezvousConnectionError:  # API v2's client gives up a watch whose server is gone
        assert waiter.wait(Cursor(1), roster=False, timeout=0).head == 2
    writer.close()
    waiter.close()


def test_a_watch_goes_on_where_history_was_compacted(own_server: Etcd) -> None:
    writer, waiter = (opened(own_server.endpoint, "/elastic", "job") for _ in range(2))
    waiting = long_wait(waiter, Cursor(), roster=False)
    for count in range(5):
        writer.enter(f"node {count}", b"")
    revision = asked(own_server, "/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    administer(own_server, "/v3/kv/compaction", {"revision": revision, "physical": True})
    assert writer.append(ORIGIN, FIRST, b"data")
    assert woken(waiting, "append()").head == 1
    # and one that begins too early
    watch = Watch(waiter._client, Keys("/elastic", "job").newest, None, View(0, {}))
    watch.sleep(10**9, 60.0)
    assert watch.ended is not None
    assert watch.told
    watch.close()
    watch.bury()
    writer.close()
    waiter.close()


def test_a_waiter_that_becomes_leader_watches_the_roster_too(server: Etcd, prefix: str) -> None:
    node, leader = (opened(server.endpoint, prefix, "job") for _ in range(2))
    before = leader.wait(Cursor(), roster=False, timeout=0.01)
    waiting = long_wait(leader, Cursor(before.head, leader.wait(before, roster=True, timeout=0).roster), roster=True)
    node.enter("node", b"")
    assert woken(waiting, "enter()").roster > 0
    waiting = long_wait(leader, Cursor(), roster=False)
    assert node.append(ORIGIN, FIRST, b"data")
    assert woken(waiting, "append()").head == 1
    node.close()
    leader.close()


def test_all_keys_of_a_job_hang_on_one_lease_that_a_heartbeat_renews(own_server: Etcd) -> None:
    backend = opened(own_server.endpoint, "/elastic", "job")
    backend.enter("node", b"")
    assert backend.append(ORIGIN, FIRST, b"data")
    lease = str(Keys("/elastic", "job").lease)
    said = asked(own_server, "/v3/lease/timetolive", {"ID": lease, "keys": True})
    assert int(said["grantedTTL"]) == EXPIRY
    assert len(said["keys"]) == 7
    calls = own_server.operations().get("LeaseKeepAlive", 0)
    for count in range(3):
        backend.heartbeat("node", count)
    assert own_server.operations()["LeaseKeepAlive"] == calls + 1, "after an append, and not again for an hour"
    follower = opened(own_server.endpoint, "/elastic", "job")
    follower.heartbeat("node", 4)
    assert own_server.operations()["LeaseKeepAlive"] == calls + 1, "a follower leaves that to whoever decides"
    follower.close()
    administer(own_server, "/v3/lease/revoke", {"ID": lease})
    assert (backend.read(1), backend.roster()) == (None, [])
    assert backend.enter("node", b"") == 1, "the next write grants it again"
    assert asked(own_server, "/v3/lease/timetolive", {"ID": lease})["grantedTTL"] == str(EXPIRY)
    backend.close()


def test_keys_in_a_store_over_v2_that_came_back_empty_are_gone_in_a_week_too(own_server: Etcd) -> None:
    backend = opened_v2(own_server.endpoint, "/elastic", "job")
    for _ in range(2):
        backend.enter("node", b"")
        assert backend.append(ORIGIN, FIRST, b"data")
        backend.heartbeat("node", 1)
        assert 0 < backend._ask(lambda client: client.read(backend._root)).ttl <= EXPIRY
        own_server.stop()
        own_server.forget()
        own_server.start().serving()
    backend.close()


def test_keys_over_v2_stay_where_a_directory_cannot_be_given_more_time(
    own_server: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with etcd 3.5, which says so in these words."""

    def refresh(client: etcd.Client, key: str, *, ttl: int, dir: bool) -> None:
        raise etcd.EtcdException(f"Raft Internal Error : nodePath /1{key} : Not a file ()")

    monkeypatch.setattr(etcd.Client, "refresh", refresh)
    first, second = (opened_v2(own_server.endpoint, "/elastic", "job") for _ in range(2))
    assert [store.enter(f"node {number}", b"") for number, store in enumerate((first, second))] == [1, 2]
    assert second.heartbeat("node 1", 1).revision == 0
    assert first._ask(lambda client: client.read(first._root)).ttl is None
    first.close()
    second.close()


def test_a_heartbeat_an_append_and_an_amendment_are_one_operation_each(own_server: Etcd) -> None:
    backend = opened(own_server.endpoint, "/elastic", "job")
    for node in range(20):
        backend.enter(f"node {node}", b"")
    other = backend.connect()
    assert backend.append(ORIGIN, FIRST, b"data")
    backend.heartbeat("node 0", 1)
    costs: dict[str, tuple[Callable[[], object], dict[str, int]]] = {
        "the first amendment, by another connection of the agent that entered": (
            lambda: other.amend("node 0", 1, b"1"),
            {"Txn": 1},
        ),
        "heartbeat": (lambda: backend.heartbeat("node 0", 2, "node 1"), {"Txn": 1}),
        "amend": (lambda: backend.amend("node 0", 2, b"2"), {"Txn": 1}),
        "append": (lambda: backend.append(FIRST, Link(2, "second"), b"data"), {"Txn": 1}),
        "read": (lambda: backend.read(2), {"Range": 1}),
        "roster": (backend.roster, {"Txn": 1}),
        "enter": (lambda: backend.enter("another", b""), {"Txn": 2}),
        "remove": (lambda: backend.remove("another"), {"Txn": 1}),
    }
    for name, (operation, cost) in costs.items():
        before = own_server.operations()
        operation()
        assert operations_since(before, own_server) == cost, name
    other.close()
    backend.close()


def test_a_waiter_gets_the_next_entry_without_a_request(own_server: Etcd) -> None:
    writer, waiter = (opened(own_server.endpoint, "/elastic", "job") for _ in range(2))
    links = chain(3)
    assert writer.append(*links[0], b"1")
    before = own_server.operations()
    assert waiter.wait(Cursor(), roster=False, timeout=0).head == 1
    assert waiter.read(1) == b"1"
    for count, (prev, entry) in enumerate(links[1:], 2):
        waiting = long_wait(waiter, Cursor(prev.index), roster=False)
        assert writer.append(prev, entry, b"%d" % count)
        assert woken(waiting, "append()").head == count
        assert waiter.read(count) == b"%d" % count
    assert operations_since(before, own_server) == {"Range": 1, "Watch": 1, "Txn": 2}
    assert waiter.read(3) == b"3", "what was told is read once; then the store is asked"
    writer.close()
    waiter.close()


def test_a_leader_that_has_written_itself_does_not_go_back_to_what_it_was_told(server: Etcd, prefix: str) -> None:
    leader = opened(server.endpoint, prefix, "job")
    seen = leader.wait(Cursor(), roster=True, timeout=0)
    for prev, entry in chain(20):
        assert leader.append(prev, entry, b"data")
        seen = leader.wait(Cursor(entry.index, seen.roster), roster=True, timeout=0.01)
        assert seen.head == entry.index
    leader.close()


def test_a_watch_from_before_the_store_went_back_is_not_believed(own_server: Etcd) -> None:
    writer, waiter = (opened(own_server.endpoint, "/elastic", "job") for _ in range(2))
    newest, (first, second) = Keys("/elastic", "job").newest, chain(2)
    assert writer.append(*first, b"1")
    lost = View(10**6, {newest: Held(Entry(Link(7, "lost"), b"lost").pack(), 10**6)})
    waiter._watcher._watch = Watch(waiter._client, newest, None, lost)
    assert waiter.wait(Cursor(), roster=False, timeout=0).head == 1, "as after a failure, when history is compared"
    before = own_server.operations()
    waiting = long_wait(waiter, Cursor(1), roster=False)
    assert writer.append(*second, b"2")
    assert woken(waiting, "append()").head == 2
    assert waiter.read(2) == b"2"
    assert operations_since(before, own_server).get("Range", 0) <= 1
    writer.close()
    waiter.close()


def test_the_only_member_is_asked_once_however_long_it_takes(own_server: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes that ask a busy one twice keep it from ever answering."""
    backend = opened(own_server.endpoint, "/elastic", "job", read_timeout=f"{1.2 * ATTEMPT:g}")
    monkeypatch.setattr(client, "Gateway", None)  # no other connection is made
    freeze(own_server.pid)
    with pytest.raises(RendezvousConnectionError, match=r"it has not answered for 2\.4 s"):
        backend.read(1)
    backend.close()


def operations_since(before: Mapping[str, int], server: Etcd) -> dict[str, int]:
    found = {method: count - before.get(method, 0) for method, count in server.operations().items()}
    return {method: count for method, count in found.items() if count}


def test_a_full_store_says_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path, flags=[f"--quota-backend-bytes={1024 * 1024}"]) as small:
        backend = opened(small.endpoint, "/elastic", "job")
        full = pytest.raises(RendezvousConnectionError, match="takes no more data")
        with full as refusal:
            for node in range(40):
                backend.enter(f"node {node}", bytes(128 * 1024))
        assert "--auto-compaction-retention" in str(refusal.value)
        backend.close()


@pytest.mark.parametrize("garbage", [b"", b"no line break", b"\n" + b"x" * 1_000_000, b"\xff" * 100])
def test_an_entry_that_is_not_ours_is_reported_and_not_believed(server: Etcd, prefix: str, garbage: bytes) -> None:
    backend = opened(server.endpoint, prefix, "job")
    key, value = (b64encode(part).decode() for part in (Keys(prefix, "job").ledger(1), garbage))
    administer(server, "/v3/kv/put", {"key": key, "value": value})
    with pytest.raises(RendezvousStateError, match="etcd holds"):
        backend.read(1)
    key = b64encode(Keys(prefix, "job").newest).decode()
    administer(server, "/v3/kv/put", {"key": key, "value": value})
    with pytest.raises(RendezvousStateError, match="etcd holds"):
        backend.wait(Cursor(), roster=False, timeout=0)
    backend.close()


@pytest.mark.parametrize(
    ("gone", "words"),
    [("head", "nothing as the job's head, and entry 1"), ("newest", "entry 1 as the job's head, and nothing")],
)
def test_a_head_and_a_newest_entry_that_differ_are_reported(server: Etcd, prefix: str, gone: str, words: str) -> None:
    keys, backend = Keys(prefix, "job"), opened(server.endpoint, prefix, "job")
    assert backend.append(ORIGIN, FIRST, b"opened")
    administer(server, "/v3/kv/deleterange", {"key": b64encode(getattr(keys, gone)).decode()})
    seen = backend.wait(Cursor(), roster=False, timeout=0).head
    with pytest.raises(RendezvousStateError, match=words):
        backend.append(FIRST if seen else ORIGIN, Link(seen + 1, "next"), b"more")
    backend.close()


def test_a_store_that_may_forget_says_so_unless_it_is_told_otherwise(server: Etcd) -> None:
    connect = partial(plugin.elastic_make_rendezvous)
    for config, forgets in (({}, True), ({"durable": "true"}, False)):
        backend = connect(parameters(server.endpoint, **config))
        other = backend.connect()
        assert (backend.may_forget, other.may_forget, backend.embedded) == (forgets, forgets, False)
        other.close()
        backend.close()
