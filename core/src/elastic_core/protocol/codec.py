"""JSON encoding of entries and rows, with a version and a size limit. Nothing from the network is unpickled.

The annotations of the dataclasses are the schema: a missing or unknown field, or one of another type, is refused by its
path.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from elastic_core.errors import ElasticError, RendezvousStateError
from elastic_core.protocol.entries import Entry, Round
from elastic_core.protocol.roster import NodeRow
from elastic_core.protocol.schema import Conversion, SchemaError, reader, writer
from elastic_core.protocol.settings import OLDEST_PROTOCOL, PROTOCOL
from elastic_core.rendezvous import guard
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, SEAL_BYTES
from elastic_core.version import __version__

_MOST = MAX_VALUE_BYTES - SEAL_BYTES  # bytes of a value of this node's own


class OversizedError(ElasticError):
    """A value that this node would write is larger than a store must take; nothing is wrong with the store."""


def encode_entry(entry: Entry, most: int = _MOST) -> bytes:
    """Return an entry in at most ``most`` bytes; a ROUND takes 8 or 9 bytes for each member.

    Raises:
        OversizedError: It would be larger than a store must take.
    """
    what = f"entry {entry.index}, a {entry.kind}"
    if isinstance(entry.body, Round) and entry.body.members:
        what += f" of {len(entry.body.members)} nodes,"
    return _dump({"speaks": [OLDEST_PROTOCOL, PROTOCOL], **writer(Entry)(entry)}, what, most)


def decode_entry(data: bytes) -> Entry:
    """Return the entry in ``data``.

    Raises:
        RendezvousStateError: It is too large, not JSON, of another protocol version, or not of the schema.
    """
    return cast(Entry, _read(reader(Entry), _load(data, "An entry in the store"), "entry"))


def encode_row(row: NodeRow, most: int = _MOST) -> bytes:
    """Return a roster row in at most ``most`` bytes; raise the errors of :func:`encode_entry`."""
    return _dump(writer(NodeRow)(row), f"the row of {row.info.node_id}", most)


def decode_row(data: bytes) -> NodeRow:
    """Return the row in ``data``; raise the errors of :func:`decode_entry`."""
    return cast(NodeRow, _read(reader(NodeRow), _load(data, "A row in the store"), "row"))


def written_by(data: bytes) -> str:
    """Return the release of elastic-core that a value says wrote it; '' if it does not say."""
    with contextlib.suppress(ValueError, RecursionError):
        plain = json.loads(data[:MAX_VALUE_BYTES])
        release = plain.get("by") if isinstance(plain, dict) else None
        return release if _is_release(release) else ""
    return ""


@dataclass(frozen=True, slots=True)
class Codec:
    """The functions that make bytes of entries and rows, and entries and rows of bytes."""

    encode_entry: Callable[[Entry], bytes] = encode_entry
    decode_entry: Callable[[bytes], Entry] = decode_entry
    encode_row: Callable[[NodeRow], bytes] = encode_row
    decode_row: Callable[[bytes], NodeRow] = decode_row
    can_fail: bool = True
    """True if there can be a row that a node cannot decode; False in a simulator whose values are not bytes."""


CODEC = Codec()  # the functions of this module


def _is_release(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) < 40 and value.isprintable()


_FOREIGN = (
    "Something else writes under this job id, or an agent of another version of Elastic runs. "
    "Use another --rdzv_id, or the same version everywhere."
)


def _dump(plain: dict[str, Any], what: str, most: int) -> bytes:
    data = json.dumps({"v": PROTOCOL, "by": __version__, **plain}, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > most:
        raise OversizedError(f"The value for {what} has {len(data)} bytes; at most {most} are allowed.")
    return data


def _load(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"{what} has {len(data)} bytes; at most {MAX_VALUE_BYTES} are read.", hint=_FOREIGN)
    if key := guard.fingerprint(data):
        raise RendezvousStateError(
            f"{what} is sealed with a job token ({key}), and this node has none.", hint=guard.SEAL_HINT
        )
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise RendezvousStateError(f"{what} is not JSON: it begins with {data[:40]!r}.", hint=_FOREIGN) from exc
    if not isinstance(plain, dict):
        raise RendezvousStateError(f"{what} is not a JSON object: it begins with {data[:40]!r}.", hint=_FOREIGN)
    version, release, speaks = (plain.pop(key, None) for key in ("v", "by", "speaks"))
    if type(version) is not int or not OLDEST_PROTOCOL <= version <= PROTOCOL:
        raise _foreign_version(what, version, release, speaks)
    return plain


def _foreign_version(what: str, version: object, release: object, speaks: object) -> RendezvousStateError:
    """Return the error for a value of a protocol version that this release does not read, none of which is trusted."""
    named = _is_release(release)
    by = f", written by elastic-core {release}" if named else ""
    match speaks:
        case [int(oldest), int(newest)]:
            by += f" (which speaks {_versions(oldest, newest)})"
    install = f"elastic-core {release} here, or elastic-core {__version__}" if named else "one release of elastic-core"
    return RendezvousStateError(
        f"{what} is of protocol version {repr(version)[:20]}{by}; this node speaks "
        f"{_versions(OLDEST_PROTOCOL, PROTOCOL)} (elastic-core {__version__}).",
        hint=f"All nodes of a job need releases that speak one protocol version: install {install} on every node. "
        "If this is another job, use another --rdzv_id.",
    )


def _versions(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def _read(reading: Conversion, plain: object, where: str) -> Any:
    try:
        return reading(plain)
    except SchemaError as exc:
        raise RendezvousStateError(f"{where}{exc.path} {exc.what}.", hint=_FOREIGN) from exc
