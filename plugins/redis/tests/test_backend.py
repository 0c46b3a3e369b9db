"""The contract of backends on a real server, and what is this backend's own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
from redis_servers import Daemon, opened, opened_in_silence, redis_server

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Cursor, HeartbeatReply, Link
from elastic_rdzv_redis.backend import RedisBackend, keys_of
from elastic_rdzv_redis.scripts import EXPIRY
from elastic_testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_testing.connections import MakeBackend, long_wait, woken
from elastic_testing.race import PATIENCE

FIRST, SECOND = Link(1, "first"), Link(2, "second")
LEDGER, ROSTER, *_ = keys_of("elastic", "job")


@pytest.mark.usefixtures("silence")
class TestRedisBackend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Daemon) -> MakeBackend:
        return partial(opened, server.endpoint)

    @pytest.fixture
    def opener(self, server: Daemon) -> MakeBackend:
        return partial(opened_in_silence, server.endpoint)


@pytest.fixture
def store(server: Daemon) -> Iterator[RedisBackend]:
    backend = opened(server.endpoint)
    yield backend
    backend.close()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Daemon]:
    """A server of this test's own, with its data on disk."""
    with redis_server(tmp_path / "durable", durable=True) as server:
        yield server


def commands(admin: redis.Redis) -> int:
    """Return the number of commands that clients have sent so far, without those inside scripts."""
    calls = {name: fact["calls"] for name, fact in admin.info("commandstats").items()}
    return sum(calls.get(f"cmdstat_{name}", 0) for name in ("evalsha", "eval", "xread"))


def test_an_operation_is_one_round_trip(store: RedisBackend, admin: redis.Redis) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.enter("node", b"0"),
        lambda: store.amend("node", 1, b"1"),
        lambda: store.heartbeat("node", 1, "node"),
        lambda: store.roster(),
        lambda: store.roster(["node"]),
        lambda: store.append(ORIGIN, FIRST, b"entry"),
        lambda: store.read(1),
        lambda: store.shrink(1),
        lambda: store.remove("node"),
    ]
    for _ in range(2):  # the server has not seen the scripts before
        before = commands(admin)
        for operation in operations:
            operation()
    assert commands(admin) - before == len(operations)


def test_one_wake_up_is_a_blocked_read_and_a_look(store: RedisBackend, admin: redis.Redis) -> None:
    waiter = store.connect()
    waiter.wait(Cursor(), roster=True, timeout=0)
    store.append(ORIGIN, FIRST, b"entry")
    before = commands(admin)
    waiting = long_wait(waiter, Cursor(1), roster=True)
    store.append(FIRST, SECOND, b"entry")
    woken(waiting, "append()")
    assert commands(admin) - before <= 4, "a look, a sleep, the append, a look"
    waiter.close()


def test_a_waiter_that_was_woken_can_wait_again_without_a_read(store: RedisBackend, admin: redis.Redis) -> None:
    waiter = store.connect()
    store.append(ORIGIN, FIRST, b"entry")
    assert waiter.wait(Cursor(), roster=True, timeout=60) == Cursor(1, 0)
    waiting = long_wait(waiter, Cursor(1), roster=True)
    store.enter("node", b"")
    woken(waiting, "enter()")
    before = commands(admin)
    waiting = long_wait(waiter, Cursor(1, 1), roster=True)
    store.append(FIRST, SECOND, b"entry")
    woken(waiting, "append()")
    assert waiter.wait(Cursor(1, 1), roster=True, timeout=60) == Cursor(2, 1)
    assert commands(admin) - before <= 3, "a sleep, the append, and a look for a cursor that is behind"
    waiter.close()


def test_a_waiter_that_was_woken_by_an_entry_has_it(store: RedisBackend, admin: redis.Redis) -> None:
    waiter = store.connect()
    waiting = long_wait(waiter, Cursor(), roster=False)
    store.append(ORIGIN, FIRST, b"entry")
    woken(waiting, "append()")
    before = commands(admin)
    assert waiter.read(1) == b"entry"
    assert commands(admin) == before
    admin.hdel(LEDGER, "1")
    assert waiter.read(1) is None, "and once"
    waiter.close()


@pytest.mark.parametrize(
    "then",
    [lambda waiter: waiter.heartbeat("node", 1), lambda waiter: waiter.wait(Cursor(), roster=False, timeout=0)],
    ids=["asked", "waited"],
)
def test_an_entry_of_the_last_wake_up_is_not_trusted_later(
    store: RedisBackend, admin: redis.Redis, then: Callable[[RedisBackend], object]
) -> None:
    waiter = store.connect()
    waiting = long_wait(waiter, Cursor(), roster=False)
    store.append(ORIGIN, FIRST, b"entry")
    woken(waiting, "append()")
    admin.hdel(LEDGER, "1", "head")
    then(waiter)
    assert waiter.read(1) is None
    waiter.close()


def test_a_waiter_for_entries_sleeps_through_changes_of_the_roster(store: RedisBackend, admin: redis.Redis) -> None:
    waiter = store.connect()
    waiting = long_wait(waiter, Cursor(), roster=False)
    before = commands(admin)
    for number in range(10):
        store.enter(f"node-{number}", b"")
    store.append(ORIGIN, FIRST, b"entry")
    woken(waiting, "append()")
    assert commands(admin) - before <= 10 + 1 + 1, "ten changes, the append, one look"
    waiter.close()


def test_every_key_expires_days_after_the_last_sign_of_the_job(store: RedisBackend, admin: redis.Redis) -> None:
    store.enter("node", b"")
    store.append(ORIGIN, FIRST, b"entry")
    names = admin.keys()
    assert set(names) == {name.encode() for name in keys_of("elastic", "job")}
    for name in names:
        admin.expire(name, 100)
    store.heartbeat("node", 1)
    assert all(100 < admin.ttl(name) <= EXPIRY for name in names)


def test_a_script_that_the_server_has_forgotten_is_sent_again(store: RedisBackend, admin: redis.Redis) -> None:
    store.enter("node", b"")
    admin.script_flush()
    assert store.heartbeat("node", 1) == HeartbeatReply(0, 0, None)


def test_a_prefix_and_a_database_keep_jobs_apart(server: Daemon, store: RedisBackend) -> None:
    others = [opened(server.endpoint, prefix="other"), opened(f"redis://{server.endpoint}/1")]
    assert store.append(ORIGIN, FIRST, b"entry")
    for other in others:
        assert other.read(1) is None
        other.close()


def test_a_server_that_was_restarted_with_its_data_has_the_same_history(durable: Daemon) -> None:
    before = opened(durable.endpoint)
    before.enter("node", b"row")
    assert before.append(ORIGIN, FIRST, b"entry")
    durable.stop()
    with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{durable.port} is gone"):
        before.read(1)
    with pytest.raises(RendezvousConnectionError, match="Connection refused"):
        before.connect()
    durable.start()
    after = before.connect()
    assert (after.read(1), [row.value for row in after.roster()]) == (b"entry", [b"row"])
    assert after.append(FIRST, SECOND, b"entry")
    after.close()
    with pytest.raises(RendezvousConnectionError):  # a connection that broke is never mended silently
        before.read(1)
    before.close()


def test_a_server_that_was_restarted_empty_is_seen_to_be_behind(durable: Daemon) -> None:
    before = opened(durable.endpoint)
    before.enter("node", b"row")
    before.append(ORIGIN, FIRST, b"entry")
    before.close()
    durable.stop()
    durable.forget()
    durable.start()
    after = opened(durable.endpoint)
    assert after.may_forget
    assert after.heartbeat("node", 5) == HeartbeatReply(head=0, revision=None, watched=None)
    assert not after.append(FIRST, SECOND, b"entry"), "what it is built on is not there"
    assert after.append(ORIGIN, FIRST, b"entry"), "and can be put back"
    assert after.append(FIRST, SECOND, b"entry")
    after.close()


def test_an_entry_is_not_built_on_another_history(store: RedisBackend, admin: redis.Redis) -> None:
    assert store.append(ORIGIN, FIRST, b"entry")
    assert store.append(FIRST, SECOND, b"entry")
    admin.delete(LEDGER)
    assert store.append(ORIGIN, Link(1, "another"), b"entry")
    assert not store.append(FIRST, SECOND, b"entry")
    assert store.read(2) is None


def test_of_an_entry_that_is_shrunk_its_id_is_left(store: RedisBackend, admin: redis.Redis) -> None:
    assert store.append(ORIGIN, FIRST, b"entry\nof two lines")
    assert store.append(FIRST, SECOND, b"entry")
    for index in (1, 1, 7):
        store.shrink(index)
    assert [store.read(index) for index in (1, 2, 7)] == [b"", b"entry", None]
    assert admin.hget(LEDGER, "1") == b"1 first\n"
    assert store.append(ORIGIN, FIRST, b"entry"), "it stands there"
    assert not store.append(ORIGIN, Link(1, "another"), b"entry")


def test_a_wait_ends_when_the_server_goes_and_the_next_one_sees_what_it_missed(durable: Daemon) -> None:
    store = opened(durable.endpoint)
    waiting = long_wait(store, Cursor(), roster=True)
    durable.kill()
    with pytest.raises(RendezvousConnectionError, match="is gone"):
        waiting.result(PATIENCE)
    durable.start()
    writer, waiter = store.connect(), store.connect()
    assert writer.append(ORIGIN, FIRST, b"entry")
    assert woken(long_wait(waiter, Cursor(), roster=True), "an earlier append()").head == 1
    for backend in (store, writer, waiter):
        backend.close()


def test_a_server_that_stops_answering_is_given_up_on_after_read_timeout(durable: Daemon) -> None:
    store = opened(durable.endpoint, read_timeout="0.5")
    waiter = store.connect()
    waiting = long_wait(waiter, Cursor(), roster=True)
    durable.freeze()
    with pytest.raises(RendezvousConnectionError, match=r"has not answered for 0\.5 s"):
        store.read(1)
    with pytest.raises(RendezvousConnectionError, match="has not answered for"):
        waiting.result(PATIENCE)
    waiter.close()
    store.close()


@pytest.mark.parametrize("garbage", [b"", b"no line break", b"cos\nsystem\n(S'true'\ntR."])
def test_an_entry_that_is_not_ours_is_not_believed(store: RedisBackend, admin: redis.Redis, garbage: bytes) -> None:
    admin.hset(LEDGER, mapping={"1": garbage.replace(b"\n", b" "), "head": 1})
    with pytest.raises(RendezvousStateError, match="in the place of an entry of the job") as error:
        store.read(1)
    assert error.value.hint


def test_an_entry_of_a_hundred_megabytes_is_not_fetched(store: RedisBackend, admin: redis.Redis) -> None:
    admin.hset(LEDGER, "1", b"x" * 100_000_000)
    sent = admin.info("stats")["total_net_output_bytes"]
    with pytest.raises(RendezvousStateError, match=f"has 100000000 bytes; at most {MAX_VALUE_BYTES}"):
        store.read(1)
    assert admin.info("stats")["total_net_output_bytes"] - sent < 100_000


def test_a_row_of_a_hundred_megabytes_is_cut_short_for_its_reader_to_refuse(
    store: RedisBackend, admin: redis.Redis
) -> None:
    store.enter("good", b"good")
    store.enter("large", b"")
    admin.hset(ROSTER, "v:large", b"x" * 100_000_000)
    for rows in (store.roster(), store.roster(["good", "large"])):
        assert [(row.node_id, len(row.value)) for row in rows] == [("good", 4), ("large", MAX_VALUE_BYTES + 1)]


@pytest.mark.parametrize(("field", "planted"), [("n:node", "one"), ("b:node", "x"), ("b:node", "")])
def test_a_row_that_is_not_ours_is_not_believed(
    store: RedisBackend, admin: redis.Redis, field: str, planted: str
) -> None:
    store.enter("node", b"")
    admin.hset(ROSTER, field, planted)
    store.enter("other", b"good")
    for rows in (store.roster(), store.roster(["node", "other"])):
        assert [(row.node_id, row.value, "in the place of the row of 'node'" in row.broken) for row in rows] == [
            ("node", b"", True),
            ("other", b"good", False),
        ]


def looks(admin: redis.Redis) -> int:
    """Return how often notifications were read."""
    calls: int = admin.info("commandstats")["cmdstat_xrevrange"]["calls"]
    return calls


def waits(admin: redis.Redis) -> bool:
    """Return True if a client is blocked in a command."""
    return any("b" in client["flags"] for client in admin.client_list())


@pytest.mark.parametrize("bell", [2, 3], ids=["the ledger's", "the roster's"])
@pytest.mark.parametrize("stroke", [{"now": "garbage", "what": "z"}, {"now": "7"}, {"now": "9" * 5000, "what": "id\n"}])
def test_a_stroke_that_is_not_ours_wakes_for_a_look_and_no_more(
    store: RedisBackend, admin: redis.Redis, bell: int, stroke: dict[str, str]
) -> None:
    assert store.append(ORIGIN, FIRST, b"first")
    waiter = store.connect()
    now = waiter.wait(Cursor(), roster=True, timeout=0)
    waiting = long_wait(waiter, now, roster=True)
    before = looks(admin)
    admin.xadd(keys_of("elastic", "job")[bell], stroke)  # type: ignore[arg-type]  # which takes more than strings
    deadline = time.monotonic() + PATIENCE
    while looks(admin) < before + 2 or not waits(admin):
        assert time.monotonic() < deadline, "the waiter has not looked, or does not wait again"
    assert looks(admin) == before + 2, "both bells are looked at, and slept on after that stroke"
    assert not waiting.done()
    assert store.append(FIRST, SECOND, b"second")
    assert woken(waiting, "an append").head == 2
    assert waiter.read(2) == b"second"
    waiter.close()


@pytest.mark.parametrize("what", ["z", "2 planted\n" + "z" * (MAX_VALUE_BYTES + 1)], ids=["no entry", "too large"])
def test_an_entry_that_a_bell_tells_wrong_is_read(store: RedisBackend, admin: redis.Redis, what: str) -> None:
    assert store.append(ORIGIN, FIRST, b"first")
    waiter = store.connect()
    waiting = long_wait(waiter, Cursor(1), roster=False)
    admin.hset(LEDGER, mapping={"2": "2 second\nentry", "head": 2})
    admin.xadd(keys_of("elastic", "job")[2], {"now": "2", "what": what})
    assert woken(waiting, "a stroke").head == 2
    assert waiter.read(2) == b"entry"
    waiter.close()


def test_a_key_of_another_kind_is_reported(store: RedisBackend, admin: redis.Redis) -> None:
    admin.set(LEDGER, "mine")
    with pytest.raises(RendezvousStateError, match="holds something else where this job's keys are"):
        store.read(1)


def test_a_counter_that_is_none_is_reported(store: RedisBackend, admin: redis.Redis) -> None:
    admin.hset(LEDGER, "head", "many")
    with pytest.raises(RendezvousStateError, match="in the place of the index of the newest entry"):
        store.heartbeat("node", 1)


def test_the_plugin_is_found_by_its_entry_point_and_imports_no_redis_until_it_is_used() -> None:
    script = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "[point] = entry_points(group='elastic.rendezvous', name='redis')\n"
        "options = point.load().elastic_rendezvous_options()\n"
        "assert {'password_file', 'sentinel', 'cacert'} <= set(options.conf), options\n"
        "assert not {'redis', 'torch'} & set(sys.modules)\n"
        "import elastic_rdzv_redis.backend\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
