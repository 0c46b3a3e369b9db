"""Roster and ledger on a Redis server.

Four keys hold one job (``scripts`` says what is in each). Every operation is one script, and so one atomic step: an
entry is written only onto the very entry that it was built on, also on a server whose history has rolled back.

A waiter looks, with one script, and then blocks on the streams that ring whenever something changes (XREAD BLOCK).
Nothing can come between the two: it waits for the stroke after the last one that it saw. Each stroke tells what is new,
a new entry included, so that a woken waiter need neither ask for it nor look again before it sleeps the next time. A
failover or a restart ends the wait with an error, and a new connection looks again; so does a waiter that was not
woken for long.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import (
    MAX_VALUE_BYTES,
    Cursor,
    Entry,
    HeartbeatReply,
    Link,
    RecordReader,
    RendezvousBackend,
    ReplaceableServer,
    RosterRow,
    StoreWarning,
    check_size,
    pack_link,
    quoted,
)
from elastic_rdzv_redis import scripts
from elastic_rdzv_redis.connect import Client, Dialler

LONGEST_SLEEP = 5.0
"""Seconds that a waiter sleeps at a time. Changes wake it; this is for a server that hangs and closes no connection."""
CONNECTIONS_PER_NODE = 4
"""Connections that a node has to the server: those of its reader, its writer and its heartbeat, and its first one."""
_LAYOUT = 2  # the version of what the keys hold; it is in their names, so that others never read each other's

_T = TypeVar("_T")


def keys_of(prefix: str, run_id: str) -> tuple[str, str, str, str]:
    """Return the names of one job's keys, in the order in which scripts take them.

    The braces keep them together where a server divides keys by name.
    """
    job = f"{prefix}:v{_LAYOUT}:{{{quoted(run_id)}}}"
    return f"{job}:ledger", f"{job}:roster", f"{job}:ledger-bell", f"{job}:roster-bell"


@dataclass(frozen=True, slots=True)
class _Look:
    cursor: Cursor
    strokes: tuple[bytes, bytes]

    def differs(self, cursor: Cursor, roster: bool) -> bool:
        """Return True if the view is news to a waiter with this cursor."""
        return self.cursor.head != cursor.head or (roster and self.cursor.roster != cursor.roster)

    def after(self, bell: int, stroke: bytes, now: int) -> _Look:
        """Return the look after bell 0 (ledger) or bell 1 (roster) has rung."""
        if bell == 0:
            return _Look(Cursor(now, self.cursor.roster), (stroke, self.strokes[1]))
        return _Look(Cursor(self.cursor.head, now), (self.strokes[0], stroke))


class RedisBackend(RendezvousBackend, ReplaceableServer):
    """One connection to one job's keys.

    ``replaceable``: an earlier connection has found that another server may replace the one it leads to; one that
    is cut off shows no replicas.

    To make one, and whatever asks the server, raises RendezvousConnectionError where it cannot be reached, refuses us,
    or will not do.
    """

    may_forget = True

    def __init__(self, dialler: Dialler, run_id: str, *, replaceable: bool = False) -> None:
        self._dialler = dialler
        self._run_id = run_id
        self._keys = keys_of(dialler.options.prefix, run_id)
        self._master = dialler.dial()
        self._client: Client = self._master.client
        self._reader = RecordReader(f"The Redis server at {self._client.where}", _WHO)
        replaceable = replaceable or dialler.options.sentinel is not None or self._master.replicas > 0
        self._replaceable, self._confirmed_at = replaceable, -math.inf if replaceable else math.inf
        self._confirming: threading.Thread | None = None
        self.warnings = () if self._master.guarded or not replaceable else (self._unguarded(),)
        self._look: _Look | None = None
        self._told: tuple[int, bytes] | None = None
        """The entry that a bell has just brought, after its index: what a read would find, until anything is asked."""

    def connect(self) -> RedisBackend:
        """Return another connection to the same job, on whichever server is the master by now."""
        return RedisBackend(self._dialler, self._run_id, replaceable=self._replaceable)

    def rehearse(self) -> None:
        """Try all commands that the job needs, which the access list may refuse, and change nothing; one round trip."""
        self._client.ask("EVAL", scripts.REHEARSE.text, len(self._keys), *self._keys)  # all others begin with EVALSHA

    def confirmed_at(self, max_age: float | None = None) -> float:
        """Return when a majority of the sentinels last named this server as the master.

        Without sentinels a connection that heartbeats counts as confirmed: a replaced server may refuse writes.
        """
        due = max_age is not None and time.monotonic() - self._confirmed_at >= max_age
        if due and (self._confirming is None or not self._confirming.is_alive()):
            self._confirming = threading.Thread(target=self._confirm, name="elastic-redis-sentinels", daemon=True)
            with suppress(RuntimeError):  # no thread can be started; the next heartbeat tries again
                self._confirming.start()
        return self._confirmed_at

    def _confirm(self) -> None:
        began = time.monotonic()
        if self._dialler.names(self._master.host):
            self._confirmed_at = began

    def _unguarded(self) -> StoreWarning:
        return StoreWarning(
            f"The Redis server at {self._client.where} takes writes that no replica gets (min-replicas-to-write is 0): "
            "cut off and replaced, it goes on taking what is thrown away later.",
            "Set min-replicas-to-write 1 and min-replicas-max-lag 10 on it, and on its replicas if it has two or more.",
        )

    def check_capacity(self, max_nodes: int) -> None:
        """Add to :attr:`warnings` what the server's limit of clients means for a job of so many nodes.

        A server whose access list forbids INFO says nothing, and nothing is added.
        """
        try:
            clients = bytes(self._client.ask("INFO", "clients")).decode(errors="replace")
        except RendezvousConnectionError as exc:
            if "NOPERM" in exc.message:
                return
            raise
        if (found := capacity_warning(clients, max_nodes, self._client.where)) is not None:
            self.warnings = (*self.warnings, found)

    def close(self) -> None:
        """Close this connection; its wait ends."""
        self._client.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row, if a majority of the sentinels names this server as the master."""
        check_size(f"The row of {node_id}", value)
        if not self._dialler.names(self._master.host):
            raise RendezvousConnectionError(
                f"No majority of the sentinels names {self._client.where} as the master.",
                hint="Name all sentinels in --rdzv_endpoint; most of them must answer, and agree.",
            )
        return self._known(int, self._run(scripts.ENTER, node_id, value))

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone."""
        check_size(f"The row of {node_id}", value)
        self._run(scripts.AMEND, node_id, revision, value)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report; one round trip."""
        watched = () if watch is None else (watch,)
        reply = self._known(list, self._run(scripts.HEARTBEAT, node_id, count, *watched), length=3)
        head, revision, heartbeat = (self._known(int, number) for number in reply)
        return HeartbeatReply(
            self._head(head), None if revision < 0 else revision, None if heartbeat < 0 else heartbeat
        )

    def remove(self, node_id: str) -> None:
        """Delete a row."""
        self._run(scripts.REMOVE, node_id)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, in order of serial; one round trip, however many they are."""
        if ids is not None and not ids:
            return []
        reply = self._known(list, self._run(scripts.ROSTER, *(ids or ())))
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        rows = [self._row(name[2:], fields) for name in fields if name.startswith(b"n:")]
        return sorted(rows, key=lambda row: row.serial)

    def _row(self, name: bytes, fields: dict[bytes, bytes]) -> RosterRow:
        try:
            serial, revision = map(int, fields[b"n:" + name].split(b" "))
            value, heartbeat = fields[b"v:" + name], int(fields[b"b:" + name])
            return RosterRow(_text(name), serial, revision, value, heartbeat)
        except (KeyError, ValueError):
            found = fields[b"n:" + name], fields.get(b"b:" + name)
            return RosterRow.unreadable(_text(name), str(self._planted(f"the row of {_text(name)!r}", found)))

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``."""
        record = Entry(entry, data).pack()
        return self._known(int, self._run(scripts.APPEND, prev.index, pack_link(prev), entry.index, record)) == 1

    def read(self, index: int) -> bytes | None:
        """Return an entry's data."""
        told, self._told = self._told, None
        if told is not None and told[0] == index:
            return told[1]
        reply: Any = self._run(scripts.READ, index)
        if reply is None:
            return None
        if isinstance(reply, int):
            raise RendezvousStateError(
                f"Entry {index} of job {self._run_id!r} has {reply} bytes; at most {MAX_VALUE_BYTES} are allowed.",
                hint=_WHO,
            )
        return self._reader.entry(self._known(bytes, reply)).data

    def shrink(self, index: int) -> None:
        """Let go of an entry's data; its id stays, so that no other entry can take its place."""
        self._run(scripts.SHRINK, index)

    def erase(self) -> bool:
        """Delete the job's four keys."""
        self._run(scripts.ERASE)
        return True

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new."""
        deadline = time.monotonic() + timeout
        self._told = None
        while True:
            left = deadline - time.monotonic()
            if self._look is None or self._look.differs(cursor, roster) or left <= 0:
                self._look = self._look_around()
                if self._look.differs(cursor, roster) or left <= 0:
                    return self._look.cursor
            self._look = self._sleep(self._look, roster, min(left, LONGEST_SLEEP))
            if self._look is not None and self._look.differs(cursor, roster):
                return self._look.cursor

    def _look_around(self) -> _Look:
        head, version, *strokes = self._known(list, self._run(scripts.LOOK), length=4)
        return _Look(Cursor(self._head(head), self._known(int, version)), (strokes[0], strokes[1]))

    def _sleep(self, look: _Look, roster: bool, timeout: float) -> _Look | None:
        """Return what has become of what was seen, as the bells tell; None when none of them has rung, or not by us."""
        bells = self._keys[2:] if roster else self._keys[2:3]
        rung = self._client.sleep_until_rung(bells, look.strokes[: len(bells)], timeout)
        try:
            for name, strokes in rung or ():
                stroke, (_, now, _, what) = strokes[-1]
                bell = self._keys.index(name.decode()) - 2
                look = look.after(bell, stroke, int(now))
                if bell == 0:
                    with suppress(RendezvousStateError):
                        self._told = int(now), self._reader.entry(what).data
        except (ValueError, TypeError):
            return None  # a bell is only a hint: after an impossible value a waiter looks, and sleeps on
        return look if rung else None

    def _run(self, script: scripts.Script, *arguments: str | bytes | int) -> Any:
        self._told = None
        encoded = (each.encode(errors="surrogateescape") if isinstance(each, str) else each for each in arguments)
        return self._client.run(script, self._keys, *encoded)

    def _known(self, kind: type[_T], reply: Any, length: int | None = None) -> _T:
        """Return a reply of the kind that it must be."""
        if not isinstance(reply, kind) or (length is not None and len(reply) != length):  # type: ignore[arg-type]  # a list
            raise self._planted("a counter", reply)
        return reply

    def _head(self, reply: Any) -> int:
        if (index := self._known(int, reply)) < 0:
            raise self._planted("the index of the newest entry", index)
        return index

    def _planted(self, what: str, found: object) -> RendezvousStateError:
        return self._reader.error(f"{what} of job {self._run_id!r}", found)


_WHO = "Another program has written there: use another --rdzv_id, or keep others out with a password."


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def capacity_warning(clients: str, max_nodes: int, where: str) -> StoreWarning | None:
    """Return a warning if the server will refuse some nodes of a job; None if all fit, or if it does not tell.

    ``clients`` is the answer to ``INFO clients`` (https://redis.io/docs/latest/commands/info/).
    """
    told = {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\s*$", clients, re.MULTILINE)}
    if "maxclients" not in told:
        return None
    others = max(0, told.get("connected_clients", 1) - 1)
    needed = others + CONNECTIONS_PER_NODE * max_nodes
    if needed <= told["maxclients"]:
        return None
    return StoreWarning(
        f"The Redis server at {where} takes {told['maxclients']} clients (maxclients). The job may have {max_nodes} "
        f"nodes (--nnodes), each with {CONNECTIONS_PER_NODE} connections, and there are {others} other clients: in all "
        f"{needed}.",
        "Raise maxclients, and the server's limit of open files with it.",
    )
