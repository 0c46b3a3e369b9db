"""The errors of an etcd member: parsed, classified, and put into words.

The gateway answers with an HTTP status and ``{"error": …, "message": …, "code": N}``, N being gRPC's status code
(https://grpc.github.io/grpc/core/md_doc_statuscodes.html); the texts are those of etcd's ``rpctypes``.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError

SPEAKS_NO_V3 = (
    "etcd 3.4 or newer is needed, with its JSON gateway on (--enable-grpc-gateway, off by a configuration file). "
    "For an older one: --rdzv_backend=etcd-v2."
)


class Kind(enum.Enum):
    """The consequence of an error."""

    PASSING = enum.auto()  # another member, or the same one a moment later, may do it
    TOKEN = enum.auto()  # the token is no longer good, or there was none: a new one is needed
    NO_LEASE = enum.auto()  # the lease that a key was to hang on is not there (yet, or any more)
    LEASE_THERE = enum.auto()  # the lease that was to be made is there already
    NO_PASSWORDS = enum.auto()  # this etcd asks for no password
    DENIED = enum.auto()  # it does not know us, or does not let us
    FULL = enum.auto()  # it takes no more data
    FOREIGN = enum.auto()  # it is no etcd, or not one that we can talk to
    OTHER = enum.auto()


class Refusal(Exception):
    """A member's answer that is not what was asked for. Never leaves this distribution."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("invalid auth token", Kind.TOKEN),
    ("revision of auth store is old", Kind.TOKEN),
    ("requested lease not found", Kind.NO_LEASE),
    ("lease already exists", Kind.LEASE_THERE),
    ("authentication is not enabled", Kind.NO_PASSWORDS),
    ("invalid user ID or password", Kind.DENIED),
    ("user name is empty", Kind.TOKEN),
    ("permission denied", Kind.DENIED),
    ("database space exceeded", Kind.FULL),
    ("no leader", Kind.PASSING),
    ("leader changed", Kind.PASSING),
    ("not leader", Kind.PASSING),
    ("timed out", Kind.PASSING),
    ("too many requests", Kind.PASSING),
    ("server stopped", Kind.PASSING),
)
_CODES = {
    1: Kind.PASSING,  # cancelled
    2: Kind.PASSING,  # unknown: what etcd has no code for, a proposal that was dropped among it
    4: Kind.PASSING,  # deadline exceeded
    7: Kind.DENIED,
    8: Kind.PASSING,  # resources exhausted
    10: Kind.PASSING,  # aborted
    12: Kind.FOREIGN,  # not implemented
    13: Kind.PASSING,  # internal
    14: Kind.PASSING,  # unavailable
    15: Kind.PASSING,  # data lost, on this member
    16: Kind.TOKEN,
}


def refusal(status: int, body: bytes) -> Refusal:
    """Return what an answer with an HTTP status other than 200 means."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if isinstance(said, dict):
        return from_error(said)
    text = body[:200].decode(errors="replace").strip().replace("\n", " ")
    if "HTTP request to an HTTPS server" in text:
        return Refusal(Kind.FOREIGN, "it speaks TLS; write https:// before the host, or --rdzv_conf protocol=https")
    if status >= 500:
        return Refusal(Kind.PASSING, f"HTTP status {status}: {text}")
    return Refusal(Kind.FOREIGN, f"HTTP status {status}: {text or 'nothing'}. {SPEAKS_NO_V3}")


def from_error(said: Mapping[str, Any]) -> Refusal:
    """Return what a decoded error of the gateway means."""
    text = str(said.get("message") or said.get("error") or said)[:500].replace("\n", " ")
    return from_text(text, said.get("code", said.get("grpc_code")))


def from_text(text: str, code: object = None) -> Refusal:
    """Return what a member's message means, with gRPC's status code if there is one."""
    for known, kind in _TEXTS:
        if known in text:
            return Refusal(kind, text)
    return Refusal(_CODES.get(code, Kind.OTHER) if isinstance(code, int) else Kind.OTHER, text)


def in_words(refused: Refusal, where: object, user: str | None) -> RendezvousConnectionError | RendezvousStateError:
    """Return the error that people read."""
    who = "a client without a user" if user is None else f"the user {user!r}"
    text = refused.text.removeprefix("etcdserver: ")
    match refused.kind:
        case Kind.DENIED | Kind.TOKEN if "permission" in text:
            return RendezvousConnectionError(
                f"etcd at {where} does not allow {who} what a job needs: {text}.",
                hint="Grant a role of this user reading and writing of all keys below the prefix: "
                "etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/",
                lasting=True,
            )
        case Kind.DENIED | Kind.TOKEN:
            return RendezvousConnectionError(
                f"etcd at {where} does not let {who} in: {text}.",
                hint="Check --rdzv_conf user=NAME,password_file=PATH, or ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD.",
                lasting=True,
            )
        case Kind.FULL:
            return RendezvousConnectionError(
                f"etcd at {where} takes no more data: {text}.",
                hint="Compact and defragment it, `etcdctl alarm disarm`; prevent it by --auto-compaction-retention=1h.",
            )
        case Kind.FOREIGN:
            return RendezvousConnectionError(
                f"What listens at {where} is no etcd that can be used: {text}", lasting=True
            )
        case Kind.PASSING | Kind.NO_LEASE:
            return RendezvousConnectionError(f"etcd at {where} cannot answer now: {text}.")
        case _:
            return RendezvousStateError(f"etcd at {where} refuses what it was asked: {text}.")
