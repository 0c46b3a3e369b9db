"""Roster and ledger on etcd's API v3.

What one job keeps, below ``PREFIX/<job id>/``, all on one lease of a week that heartbeats renew::

    head            the newest entry's link; what an append compares, and a heartbeat reads
    state/newest    the newest entry once more; what followers watch, who so need not read it
    state/roster    rewritten with every enter, amend and remove; its revision is the roster's version
    ledger/7        entry 7; written once
    arrivals        rewritten for every serial that is handed out; how often that was, etcd counts
    row/<node>      a row
    heartbeat/<node>     its heartbeat

Whatever must not come apart is one transaction, so there is nothing to repair after a crash, and nothing that happens
twice when a request is made again after its reply was lost:

* **An append** writes the entry and the head, if the head is the entry that it was built on and the index is free (S2).
* **A serial** is how often ``arrivals`` was written. Etcd counts that itself, so no writer has to try twice.
* **An amendment** compares bytes: a row's begin with its revision, in 19 digits. An older one never wins, and a row
  that is gone is not made again.
* **A heartbeat** is written, and what it brings back is read, in one round trip.

A waiter looks once, and is then told of every change by its watch, a new entry included: a woken one need neither look,
nor ask for the entry, nor look again before it sleeps the next time.

Reads are linearizable (etcd's default), so none is older than what was known before.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from base64 import b64decode
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from elastic_core.config import Timing
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.rendezvous import (
    ORIGIN,
    TOMBSTONE,
    Cursor,
    Entry,
    HeartbeatReply,
    Link,
    RecordReader,
    RendezvousBackend,
    RosterRow,
    Row,
    StoreWarning,
    check_size,
    is_number,
    pack_link,
    pack_revision,
    quoted,
    unquoted,
)
from elastic_rdzv_etcd.client import RANGE, Client, Cluster, Lost, View, Watcher, range_of, text_of

if TYPE_CHECKING:
    from elastic_rdzv_etcd.sidecar import Sidecar

EXPIRY = 7 * 86400  # seconds after the last heartbeat at which a job's keys are gone
RENEW = 3600.0  # seconds between two renewals of that by one agent
_HINT = "Something that is not part of this job has written to etcd; give the job a prefix (etcd_prefix) of its own."
READER = RecordReader("etcd", _HINT)

TXN, STATUS = "/v3/kv/txn", "/v3/maintenance/status"
GRANT, KEEP_ALIVE, REVOKE = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
LOOK_AGAIN = 15.0
"""Seconds after which a waiter that was told nothing reads all the same: a member may be stuck, its streams open."""

BYTES_PER_HEARTBEAT = 200  # that one heartbeat adds to etcd's history, measured (``benchmarks/RESULTS.md``)
DEFAULT_QUOTA = 2 << 30
"""Bytes after which etcd takes no more writes, unless ``--quota-backend-bytes`` says otherwise
(https://etcd.io/docs/latest/op-guide/maintenance/#space-quota)."""
YOUNG = 1000  # revisions below which a history that was never compacted is no finding
LEAST_DAYS = 30.0  # days for which a job must fit into the quota; most jobs are shorter
FEW = 32
"""So many rows are asked for by name, since etcd takes 128 questions at a time; of more, all that there are."""

Json: TypeAlias = dict[str, Any]


class Keys:
    """The keys of one job; ``state``, ``rows`` and ``heartbeats`` are prefixes of keys."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self._job = job = f"{prefix}/{quoted(run_id)}/".encode()
        self.head, self.arrivals = job + b"head", job + b"arrivals"
        self.state, self.newest, self.roster = job + b"state/", job + b"state/newest", job + b"state/roster"
        self.rows, self.heartbeats = job + b"row/", job + b"heartbeat/"
        self.lease = int.from_bytes(hashlib.sha256(job + b"lease").digest()[:8], "big") >> 1 or 1
        """The number of the job's lease, a positive int64: made from the job's name, so that every node knows it."""

    def ledger(self, index: int) -> bytes:
        """Return the key of an entry."""
        return self._job + b"ledger/%d" % index

    def row(self, node_id: str) -> bytes:
        """Return the key of a node's row."""
        return self.rows + quoted(node_id).encode()

    def heartbeat(self, node_id: str) -> bytes:
        """Return the key of a node's heartbeat."""
        return self.heartbeats + quoted(node_id).encode()


def check_newest(head: bytes | None, newest: bytes | None) -> None:
    """Refuse, by RendezvousStateError, a head beside another newest entry: they are written together.

    Who waits for the one would build on it, and be refused by the other for ever.
    """
    links = READER.link(head), ORIGIN if newest is None else READER.entry(newest).link
    if links[0] != links[1]:
        first, second = (f"entry {link.index}" if link.index else "nothing" for link in links)
        raise RendezvousStateError(
            f"etcd holds {first} as the job's head, and {second} as its newest entry.", hint=_HINT
        )


@dataclass(frozen=True, slots=True)
class Made:
    """A row's serial, and the revision at which it was made."""

    serial: int
    revision: str


@dataclass(slots=True)
class Common:
    """The shared state of the connections of one agent."""

    made: dict[str, Made] = field(default_factory=dict)  # the rows that it has entered or amended
    renew_at: float = field(default_factory=lambda: time.monotonic() + RENEW)
    """When its next heartbeat renews the job's lease."""


class EtcdBackend(RendezvousBackend):
    """One connection to one job's keys.

    Raises:
        RendezvousConnectionError: No member answers, or none lets us in.
        RendezvousStateError: What answers is not what it should be.
    """

    def __init__(
        self,
        cluster: Cluster,
        run_id: str,
        *,
        sidecar: Sidecar | None = None,
        embedded: bool = False,
        common: Common | None = None,
    ) -> None:
        self.embedded = embedded or sidecar is not None
        self.may_forget = not (self.embedded or cluster.options.durable)
        self._cluster = cluster
        self._run_id = run_id
        self._sidecar = sidecar
        self._keys = Keys(cluster.options.prefix, run_id)
        self._lease = str(self._keys.lease)
        self._client = Client(cluster)
        self._watcher = Watcher(self._client)
        self._common = Common() if common is None else common
        self._told: tuple[int, bytes] | None = None
        """The entry that a wait has just brought, after its index: what a read would find, until anything is asked."""
        try:
            self._client.call(RANGE, range_of(self._keys.head), reaching=True)
        except (RendezvousConnectionError, RendezvousStateError):
            self._client.close()
            raise

    def check_history(self, max_nodes: int) -> None:
        """Add to :attr:`warnings` what heartbeats of so many nodes do to an etcd whose history is never compacted.

        A cluster that does not let this client ask is not judged.
        """
        try:
            used = int(self._client.call(STATUS, {}).get("dbSize", 0))
            revision = int(self._client.call(RANGE, range_of(self._keys.head))["header"]["revision"])
            compacted = self._compacted()
        except (RendezvousConnectionError, RendezvousStateError):
            return
        found = history_warning(
            revision=revision,
            compacted=compacted,
            used=used,
            max_nodes=max_nodes,
            beat_interval=Timing().beat_interval,
            where=str(self._cluster),
        )
        if found is not None:
            self.warnings = (*self.warnings, found)

    def _compacted(self) -> bool:
        try:
            self._client.call(RANGE, {**range_of(self._keys.head), "revision": "2"})
        except RendezvousStateError as exc:
            if "compacted" in exc.message:
                return True
            raise
        return False

    def connect(self) -> EtcdBackend:
        """Return another connection to the same job."""
        try:
            return EtcdBackend(self._cluster, self._run_id, embedded=self.embedded, common=self._common)
        except RendezvousConnectionError as exc:
            if self.embedded:  # it serves this agent only
                raise StoreLostError(exc.message, hint=exc.hint) from exc
            self._cluster.look_up_again()
            raise

    def close(self) -> None:
        """Close this connection; its wait ends. If this is the one that started an etcd of its own, that ends too."""
        self._watcher.close()
        self._client.close()
        if self._sidecar is not None:
            self._sidecar.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row: its serial first, and then the row. Two round trips, however many nodes do the same."""
        keys = self._keys
        check_size(f"The row of {node_id}", value)  # before it costs a serial
        row, absent = keys.row(node_id), _is_absent(keys.row(node_id))
        while True:
            done, answers = self._txn([absent], [self._put(keys.arrivals, b"", prev_kv=True)], [_get(row)])
            if done:
                serial = int(answers[0].get("prev_kv", {}).get("version", "0")) + 1
                made = [
                    self._put(row, Row(node_id, serial, 0, value).pack()),
                    self._put(keys.heartbeat(node_id), b"0"),
                    self._put(keys.roster, b""),
                    _get(row, keys_only=True),
                ]
                done, answers = self._txn([absent], made, [_get(row)])
                if done:
                    self._common.made[node_id] = Made(serial, str(answers[-1]["kvs"][0]["create_revision"]))
                    return serial
            if found := _values(answers[0]):
                return READER.row(found[0]).serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone. One round trip, for a row that this agent has entered."""
        key = self._keys.row(node_id)
        check_size(f"The row of {node_id}", value)
        while True:
            if (made := self._common.made.get(node_id)) is not None:
                conditions = [
                    _compare(key, "CREATE", "EQUAL", create_revision=made.revision),
                    _compare(key, "VALUE", "LESS", value=text_of(pack_revision(revision))),
                ]
                record = Row(node_id, made.serial, revision, value).pack()
                changes = [self._put(key, record), self._put(self._keys.roster, b"")]
                done, answers = self._txn(conditions, changes, [_get(key)])
                if done:
                    return
            else:
                _, answers = self._txn([], [_get(key)], [])
            found = answers[0].get("kvs", ())
            if not found:
                self._common.made.pop(node_id, None)
                return
            row = READER.row(_value(found[0]))
            if row.revision >= revision:
                return
            self._common.made[node_id] = Made(row.serial, str(found[0]["create_revision"]))

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report: one round trip.

        A second one, which renews the job's lease, once an hour, and after an append: the leader of a job that was
        left for days renews it at once, and no other node has to.
        """
        keys = self._keys
        if time.monotonic() >= self._common.renew_at:
            self._client.call(KEEP_ALIVE, {"ID": self._lease})
            self._common.renew_at = time.monotonic() + RENEW
        common = [_get(keys.head), *([] if watch is None else [_get(keys.heartbeat(watch))])]
        there = _compare(keys.row(node_id), "VERSION", "GREATER", version="0")
        mine = [self._put(keys.heartbeat(node_id), b"%d" % count), _get(keys.row(node_id))]
        done, answers = self._txn([there], [*common, *mine], [])
        if not done:  # a question that is seldom needed is not sent along with every heartbeat
            _, answers = self._txn([], common, [])
        head, *others = [_values(answer) for answer in answers]
        watched = others[0][0] if watch is not None and others[0] else b""
        return HeartbeatReply(
            head=READER.link(head[0] if head else None).index,
            revision=READER.row(others[-1][0]).revision if done else None,
            watched=int(watched) if is_number(watched) else None,
        )

    def remove(self, node_id: str) -> None:
        """Delete a row, and its heartbeat."""
        keys = self._keys
        there = _compare(keys.row(node_id), "VERSION", "GREATER", version="0")
        gone = [_delete(keys.row(node_id)), _delete(keys.heartbeat(node_id)), self._put(keys.roster, b"")]
        self._common.made.pop(node_id, None)
        self._txn([there], gone, [])

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, with their heartbeats as they are at one instant: one round trip, however many they are."""
        keys = self._keys
        if ids is not None and len(ids) <= FEW:
            wanted = [*map(keys.row, ids), *map(keys.heartbeat, ids)]
            _, answers = self._txn([], [_get(key) for key in wanted], []) if wanted else (True, [])
        else:
            _, answers = self._txn([], [_get(keys.rows, prefix=True), _get(keys.heartbeats, prefix=True)], [])
        values = {_key(kv): _value(kv) for answer in answers for kv in answer.get("kvs", ())}
        names = {key[len(keys.rows) :] for key in values if key.startswith(keys.rows)}
        if ids is not None:
            names &= {quoted(node_id).encode() for node_id in ids}
        found = [
            READER.listed(unquoted(name), values[keys.rows + name], values.get(keys.heartbeats + name))
            for name in names
        ]
        return sorted(found, key=lambda row: row.serial)

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``: one round trip."""
        keys, record = self._keys, Entry(entry, data).pack()
        at_prev = _compare(keys.head, "VALUE", "EQUAL", value=text_of(pack_link(prev)))
        built_on = _is_absent(keys.head) if prev == ORIGIN else at_prev
        free = _is_absent(keys.ledger(entry.index))
        written = [
            self._put(keys.ledger(entry.index), record),
            self._put(keys.head, pack_link(entry)),
            self._put(keys.newest, record),
        ]
        looked = [_get(keys.ledger(entry.index)), _get(keys.head), _get(keys.newest)]
        done, answers = self._txn([free, built_on], written, looked)
        if done:
            self._common.renew_at = 0.0
            return True
        there, head, newest = (next(iter(_values(answer)), None) for answer in answers)
        check_newest(head, newest)
        return there is not None and READER.entry(there).link == entry

    def read(self, index: int) -> bytes | None:
        """Return an entry's data; no round trip for the one that a wait has just brought."""
        told, self._told = self._told, None
        if told is not None and told[0] == index:
            return told[1]
        found = _values(self._client.call(RANGE, range_of(self._keys.ledger(index))))
        return READER.entry(found[0]).data if found else None

    def shrink(self, index: int) -> None:
        """Let go of an entry's data, and keep its id: two round trips."""
        key = self._keys.ledger(index)
        kvs = self._client.call(RANGE, range_of(key)).get("kvs", ())
        if not kvs:
            return
        link, data = READER.entry(_value(kvs[0]))
        if data:
            unchanged = _compare(key, "MOD", "EQUAL", mod_revision=str(kvs[0]["mod_revision"]))
            self._txn([unchanged], [self._put(key, Entry(link, TOMBSTONE).pack())], [])

    def erase(self) -> bool:
        """Revoke the job's lease, on which all of its keys hang."""
        with contextlib.suppress(Lost):  # nothing was ever written
            self._client.call(REVOKE, {"ID": self._lease})
        return True

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new; told by a watch of one key, or of two. A round trip to begin with, if any."""
        deadline = time.monotonic() + timeout
        keys = self._keys
        first, end = (keys.state, _after(keys.state)) if roster else (keys.newest, None)
        self._told = None
        view = self._watcher.view(first, end)
        while True:
            left = deadline - time.monotonic()
            if view is None or left <= 0 or self._lags(view, cursor, roster):
                view = self._watcher.look(first, end)
            if (now := self._cursor(view, cursor, roster)) != cursor or left <= 0:
                return now
            view = self._watcher.sleep(first, end, view, min(left, LOOK_AGAIN))

    def _cursor(self, view: View, cursor: Cursor, roster: bool) -> Cursor:
        """Return how far the store has come in this view, which keeps the newest entry for the next read."""
        newest, version = (view.keys.get(key) for key in (self._keys.newest, self._keys.roster))
        link, data = (ORIGIN, b"") if newest is None else READER.entry(newest.value)
        if link.index > cursor.head:
            self._told = link.index, data
        return Cursor(link.index, cursor.roster if not roster else 0 if version is None else version.revision)

    def _lags(self, view: View, cursor: Cursor, roster: bool) -> bool:
        """Return True if a waiter with this cursor has seen more than this view shows, or other things."""
        now = self._cursor(view, cursor, roster)
        return now.head < cursor.head or (now.head == cursor.head and now.roster < cursor.roster)

    def _txn(self, compare: list[Json], success: list[Json], failure: list[Json]) -> tuple[bool, list[Json]]:
        """Run a transaction; return whether its conditions held, and the answers of the branch that was taken."""
        self._told = None
        request = {"compare": compare, "success": success, "failure": failure}
        for _ in range(3):
            try:
                said = self._client.call(TXN, request)
            except Lost:  # the first write of a job, or of one that all had forgotten
                with contextlib.suppress(Lost):  # another node was faster
                    self._client.call(GRANT, {"ID": self._lease, "TTL": str(EXPIRY)})
            else:
                answers = [next(iter(answer.values())) for answer in said.get("responses", ())]
                return bool(said.get("succeeded")), answers
        raise RendezvousConnectionError("etcd loses the job's lease as soon as it has granted it.")

    def _put(self, key: bytes, value: bytes, *, prev_kv: bool = False) -> Json:
        put = {"key": text_of(key), "value": text_of(value), "lease": self._lease, "prev_kv": prev_kv}
        return {"request_put": put}


def _get(key: bytes, *, prefix: bool = False, keys_only: bool = False) -> Json:
    return {"request_range": {**range_of(key, _after(key) if prefix else None), "keys_only": keys_only}}


def _delete(key: bytes) -> Json:
    return {"request_delete_range": {"key": text_of(key)}}


def _compare(key: bytes, target: str, result: str, **value: str) -> Json:
    return {"key": text_of(key), "target": target, "result": result, **value}


def _is_absent(key: bytes) -> Json:
    return _compare(key, "VERSION", "EQUAL", version="0")


def _after(prefix: bytes) -> bytes:
    """Return the first key that sorts after all that begin with ``prefix``, which ends with a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _values(answer: Json) -> list[bytes]:
    return [_value(kv) for kv in answer.get("kvs", ())]


def _key(kv: Json) -> bytes:
    return b64decode(kv["key"])


def _value(kv: Json) -> bytes:
    return b64decode(kv.get("value", ""))


def days_until_full(nodes: int, beat_interval: float, used: int) -> float:
    """Return the days until the heartbeats of so many nodes fill the default quota; ``used`` bytes are taken."""
    return max(0, DEFAULT_QUOTA - used) / (BYTES_PER_HEARTBEAT * nodes / beat_interval) / 86_400


def history_warning(
    *, revision: int, compacted: bool, used: int, max_nodes: int, beat_interval: float, where: str
) -> StoreWarning | None:
    """Return a warning if the job fills etcd's quota; None if etcd is compacted, or too young to tell.

    ``used`` is in bytes; ``compacted`` says whether the first revisions were compacted.
    """
    days = days_until_full(max_nodes, beat_interval, used)
    if compacted or revision < YOUNG or days >= LEAST_DAYS:
        return None
    span = f"{days:.0f} days" if days >= 2 else f"{24 * days:.1f} hours"
    return StoreWarning(
        f"etcd at {where} keeps its whole history: all {revision} revisions, {used >> 20} MiB. The heartbeats of up to "
        f"{max_nodes} nodes (--nnodes) fill its default quota of 2 GiB in {span}, and then it takes no more writes.",
        "Start etcd with --auto-compaction-retention=1h, or raise --quota-backend-bytes.",
    )
