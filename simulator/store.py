"""A store behind a network that can delay, lose or repeat each call.

A call travels to the store, is carried out there atomically, and its reply travels back. Request and reply can be late
or lost, and a call that its caller gave up can still arrive and be carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import ElasticError, RendezvousConnectionError, StoreLostError
from elastic_core.protocol.codec import decode_entry, decode_row
from elastic_core.rendezvous.backend import (
    SEAL_BYTES,
    Cursor,
    HeartbeatReply,
    Link,
    RendezvousBackend,
    ReplaceableServer,
    RosterRow,
)
from simulator.amendments import Amendments
from simulator.channel import Channel, Payload
from simulator.engine import Hub, Process, Task
from simulator.replica import Replica

if TYPE_CHECKING:
    from simulator.idle_nodes import IdleNodes

MOST_CALLS = 400
"""Calls of one host in one second from which on the store counts as overloaded (fault 31)."""
WRITES = frozenset({"enter", "amend", "heartbeat", "remove", "append", "shrink"})
NO_CURSOR = Cursor()
"""The cursor of a call that waits for nothing."""
REFUSED = "connection refused"
"""The reason of a failure where no server listens: an embedded store is lost then."""
GHOST_LATEST = 8.0
"""The most seconds until a call that was given up is carried out."""


class SimStore:
    """The servers, and the channels to them."""

    def __init__(
        self,
        hub: Hub,
        appended: Callable[[Replica, Any], None],
        shrunk: Callable[[Replica, int], None],
        *,
        latency: float,
        timeout: float,
        count: Callable[[str], None],
    ) -> None:
        self.hub, self.latency, self.timeout, self.count = hub, latency, timeout, count
        self.master = Replica(appended, shrunk)
        self.down = False
        self.embedded = self.may_forget = self.stale_reads = self.guarded = self.stale_sentinels = False
        self.connections: dict[Connection, None] = {}
        self.rosters: dict[str, list[RosterRow]] = {}
        """The whole roster, as each agent last read it over any of its connections."""
        self.written_rows: dict[str, list[bytes]] = {}
        """All values that each node has written, or tried to write, as its row."""
        self.based_on: dict[str, list[RosterRow]] = {}
        """The roster as each entry's author knew it when it first sent the entry, without rows that it had removed."""
        self.amendments = Amendments(count)
        self.on_overload: Callable[[str], None] = lambda what: None
        self.on_row_sent: Callable[[Any], None] = lambda value: None
        """Called with each row that a node is about to write."""
        self.idle_nodes: IdleNodes | None = None
        """Nodes that only send heartbeats, on all servers."""
        self.roster_delay = 0.0
        """Seconds of a read of the whole roster, besides the latency."""
        self.heartbeat: Callable[[str], None] | None = None
        """Called with the node id of each heartbeat that arrives."""
        self.on_roster_read: Callable[[str, object, list[RosterRow]], None] = lambda reader, connection, rows: None
        """Called with the reader and the result of each read of the whole roster."""

    def transit_time(self, channel: Channel) -> float:
        """Return the seconds of one message."""
        random = self.hub.random.random
        return self.latency * (0.5 + random()) + (channel.slow * random() if channel.slow else 0.0)

    def reset(self, concerned: Callable[[Connection], bool]) -> None:
        """Reset the connections for which ``concerned`` is True."""
        for connection in [one for one in self.connections if concerned(one)]:
            connection.abort("the connection was reset")

    def stop(self) -> None:
        """Stop all servers."""
        self.down = True
        self.reset(lambda _: True)

    def send(self, call: Call) -> None:
        """Send a call."""
        hub, channel, way = self.hub, call.channel, self.transit_time(call.channel)
        self._count_call(channel)
        if self.down:
            hub.at(hub.now + way, call.fail, REFUSED)
            return
        replaced = self.guarded and channel.replica is not self.master
        if (channel.read_only or replaced) and call.name in WRITES:
            self.count("store full or read-only")
            hub.at(hub.now + way, call.fail, "the store is read-only")
            return
        if hub.now < call.connection.hung_until:
            hub.at(call.deadline, call.fail, "no answer")
            return
        if channel.lossy and hub.random.random() < channel.lossy:
            self._drop(call, channel, way)
            return
        arrival = hub.now + way
        if channel.to_cut > hub.now:
            arrival = channel.to_cut + way
            if arrival > call.deadline:
                hub.at(call.deadline, call.fail, "no answer")
                if call.name in WRITES and hub.random.random() < 0.5:
                    self.count("ghost write")
                    hub.at(arrival, self.execute, call)
                return
        hub.at(arrival, self.execute, call)

    def _count_call(self, channel: Channel) -> None:
        if channel.second != int(self.hub.now):
            channel.second, channel.calls = int(self.hub.now), 0
        channel.calls += 1
        if channel.calls == MOST_CALLS:
            self.on_overload(f"{MOST_CALLS} calls of one host within a second")

    def _drop(self, call: Call, channel: Channel, way: float) -> None:
        hub, lot = self.hub, self.hub.random.random()
        if channel.late_writes:
            self.count("ghost write, very late")
            call.reply_dropped = True
            hub.at(hub.now + way, call.fail, "the connection was reset")
            hub.at(hub.now + channel.late_writes * hub.random.random(), self.execute, call)
        elif lot < 0.4:
            self.count("request lost before the commit")
            hub.at(hub.now + way, call.fail, "the connection was reset")
        elif lot < 0.8:
            self.count("reply lost after the commit")
            call.reply_dropped = True
            hub.at(hub.now + way, self.execute, call)
            hub.at(hub.now + 2 * way, call.fail, "the connection was reset")
        else:
            self.count("ghost write")
            call.reply_dropped = True
            hub.at(hub.now + way, call.fail, "the connection was reset")
            hub.at(hub.now + GHOST_LATEST * hub.random.random(), self.execute, call)

    def execute(self, call: Call) -> None:
        """Execute a call that has arrived."""
        hub, channel = self.hub, call.channel
        if (
            self.down or call.generation != channel.generation
        ):  # it was on its way to the server that was, and to no other
            call.fail("the connection was reset")
        elif hub.now < channel.to_cut:  # the channel was cut while it was under way
            again = channel.to_cut + self.transit_time(channel)
            if again < call.deadline:
                hub.at(again, self.execute, call)
            else:
                hub.at(call.deadline, call.fail, "no answer")
        elif call.name == "wait":
            self._wait(call)
        else:
            if call.name == "heartbeat" and self.heartbeat is not None:
                self.heartbeat(call.args[0])
            if call.name == "amend":
                self.amendments.on_arrival(channel.replica.rows, *call.args)
            server = channel.replica if call.name in WRITES or channel.stale_copy is None else channel.stale_copy
            result = getattr(server, call.name)(*call.args)
            if not call.over and not call.reply_dropped:
                call.reply(result)

    def _wait(self, call: Call) -> None:
        if call.over or call.reply_dropped:
            return
        replica, (cursor, roster, timeout) = call.channel.stale_copy or call.channel.replica, call.args
        news = replica.wait(cursor, roster, timeout)
        if news is not None or timeout <= 0:
            call.reply(news or cursor)
            return
        replica.waiting.append(call)
        self.hub.at(self.hub.now + timeout, self._waited, replica, call)

    def _waited(self, replica: Replica, call: Call) -> None:
        if call in replica.waiting:
            replica.waiting.remove(call)
            call.reply(Cursor(replica.head, replica.version))


class Call:
    """One operation under way."""

    __slots__ = (
        "args",
        "channel",
        "connection",
        "cursor",
        "deadline",
        "generation",
        "name",
        "over",
        "reply_dropped",
        "store",
        "task",
        "ticket",
        "watches_roster",
    )

    def __init__(self, connection: Connection, task: Task, name: str, args: tuple[Any, ...]) -> None:
        self.connection, self.task, self.ticket, self.name, self.args = connection, task, task.ticket, name, args
        self.store, self.channel = connection.store, connection.channel
        self.deadline = self.store.hub.now + self.store.timeout
        self.generation = self.channel.generation
        self.over = self.reply_dropped = False
        self.cursor: Cursor = args[0] if name == "wait" else NO_CURSOR
        self.watches_roster: bool = name == "wait" and args[1]

    def reply(self, value: object) -> None:
        """Send the store's reply."""
        if (idle_nodes := self.store.idle_nodes) is not None and self.name == "roster" and self.args[0] is None:
            value = [*cast("list[RosterRow]", value), *idle_nodes.roster()]
        elif idle_nodes is not None and self.name == "remove":
            idle_nodes.remove(self.args[0])
        hub, channel = self.store.hub, self.channel
        began = channel.reads_blocked_until if self.name == "read" else 0.0
        arrival = max(hub.now, channel.from_cut, began) + self.store.transit_time(channel)
        arrival += self.store.roster_delay if self.name == "roster" and self.args[0] is None else 0.0
        if self.name != "wait" and arrival > self.deadline:
            self.store.count("reply lost after the commit")
            hub.at(max(hub.now, self.deadline), self.fail, "no answer")
        else:
            hub.at(arrival, self.done, value, channel.generation)

    def done(self, value: object, life: int) -> None:
        """Take a reply that has arrived; the server gave it in this generation."""
        if not self.over:
            self.over = True
            if self.channel.contact_since is None and life == self.channel.generation:
                self.channel.contact_since = self.store.hub.now
            self.task.wake(self.ticket, value)

    def fail(self, why: str) -> None:
        """Fail the call: a timeout, or a broken connection."""
        if not self.over:
            self.over = True
            lost = self.store.embedded and why == REFUSED
            error = StoreLostError if lost else RendezvousConnectionError
            self.task.wake(self.ticket, error(f"The store: {why}."))


def _as_payload(data: bytes, decode: Callable[[bytes], object]) -> bytes:
    """Return a value as it travels; a sealed one keeps its bytes."""
    return data if isinstance(data, Payload) else Payload.of(decode(data[SEAL_BYTES:]), data)


class Connection(RendezvousBackend, ReplaceableServer):
    """One client's connection."""

    def __init__(self, store: SimStore, channel: Channel, process: Process, *, hosting: bool = True) -> None:
        self.store, self.channel, self.process = store, channel, process
        self.embedded, self.hosting, self.may_forget = store.embedded, hosting, store.may_forget
        self._confirmed_at = -math.inf if store.stale_reads else math.inf
        self.hung_until = 0.0
        """Until this instant no request on this connection arrives."""
        self.call: Call | None = None
        self.broken = ""
        self._roster: list[RosterRow] | None = None
        """The roster as last read over this connection, without rows that were removed since."""

    def connect(self) -> Connection:
        other = Connection(self.store, self.channel, self.process, hosting=self.hosting)
        other._request("ping")
        self.store.connections[other] = None
        return other

    def close(self) -> None:
        self.abort("the connection is closed")

    def abort(self, why: str) -> None:
        """Break the connection: the call under way fails, and all later ones."""
        self.broken = self.broken or why
        self.store.connections.pop(self, None)
        if (call := self.call) is not None and not self.store.hub.over:
            if call in self.channel.replica.waiting:
                self.channel.replica.waiting.remove(call)
            self.store.hub.at(self.store.hub.now, call.fail, why)

    def enter(self, node_id: str, value: bytes) -> int:
        if self.store.stale_reads and not self._is_confirmed():
            raise RendezvousConnectionError("The sentinels do not name this server.")
        self.store.amendments.on_enter(node_id)
        value = _as_payload(value, decode_row)
        self.store.written_rows.setdefault(node_id, []).append(value)
        self.store.on_row_sent(value)
        return int(self._request("enter", node_id, value))

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        self.store.amendments.on_send(node_id, revision)
        value = _as_payload(value, decode_row)
        self.store.written_rows.setdefault(node_id, []).append(value)
        self.store.on_row_sent(value)
        self._request("amend", node_id, revision, value)
        self.store.amendments.on_commit(node_id, revision)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        reply: HeartbeatReply = self._request("heartbeat", node_id, count, watch)
        return reply

    def remove(self, node_id: str) -> None:
        self._request("remove", node_id)
        self._roster = [row for row in self._known_roster() if row.node_id != node_id]

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        rows: list[RosterRow] = self._request("roster", ids)
        if ids is None:
            self._roster = self.store.rosters[self.process.name] = rows
            self.store.on_roster_read(self.process.name, self, rows)
        return rows

    def _known_roster(self) -> list[RosterRow]:
        """Return the roster as this connection last read it, else as any connection of the agent did."""
        return self.store.rosters.get(self.process.name, []) if self._roster is None else self._roster

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        self.store.based_on.setdefault(entry.id, self._known_roster())
        return bool(self._request("append", prev, entry, _as_payload(data, decode_entry)))

    def read(self, index: int) -> bytes | None:
        data: bytes | None = self._request("read", index)
        return data

    def shrink(self, index: int) -> None:
        self.store.based_on[f"shrink {index}"] = self._known_roster()
        self._request("shrink", index)

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        found: Cursor = self._request("wait", cursor, roster, timeout)
        return found

    def confirmed_at(self, max_age: float | None = None) -> float:
        now = self.process.clock.now()
        if max_age is not None and now - self._confirmed_at >= max_age and self._is_confirmed():
            self._confirmed_at = now
        return self._confirmed_at

    def _is_confirmed(self) -> bool:
        """Return True if the sentinels name this connection's server; one that refuses writes needs none."""
        if max(self.channel.to_cut, self.channel.from_cut) > self.store.hub.now or self.store.down:
            return False
        return self.store.guarded or self.store.stale_sentinels or self.channel.replica is self.store.master

    def _request(self, name: str, *args: Any) -> Any:
        if self.broken:
            raise RendezvousConnectionError(f"The store: {self.broken}.")
        task = self.store.hub.task()
        call = self.call = Call(self, task, name, args)
        self.store.send(call)
        outcome = task.park()
        self.call = None
        if isinstance(outcome, ElasticError):
            raise outcome
        return outcome
