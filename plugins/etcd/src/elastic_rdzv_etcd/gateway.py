"""One socket to one member of the cluster, and etcd's JSON gateway at the other end of it.

The HTTP client is the standard library's. What a pool of connections adds (retries, redirects, reconnecting) is what
must not happen to a write behind our back, and what we need (the socket, so that another thread can end a wait) a pool
keeps to itself.

The gateway maps gRPC to JSON (https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/): 64-bit numbers come as strings,
bytes are base64, and what is zero, false or empty is left out. It reports an error with an HTTP status and
``{"error": …, "message": …, "code": N}``, N being gRPC's status code
(https://grpc.github.io/grpc/core/md_doc_statuscodes.html); the texts are those of etcd's ``rpctypes``.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_rdzv_etcd.options import Site

SPEAKS_NO_V3 = (
    "etcd 3.4 or newer is needed, with its JSON gateway on (--enable-grpc-gateway, off by a configuration file). "
    "For an older one: --rdzv_backend=etcd-v2."
)
MOST_BYTES = 512 * 1024 * 1024
"""No answer is read beyond this: a roster of a thousand rows of the greatest size, in base64."""

_TCP = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_USER_TIMEOUT: 2000}
"""A watch is silent by nature, and so is a member that is busy; one whose host has vanished acknowledges nothing, which
is noticed within 2 s of asking it something, and else within 10."""
CONNECT = 2.0
"""Most seconds for a connection to be taken, which the kernel does however busy a member is. Where no answer comes, it
asks ever more seldom; so another connection is begun."""


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


_PASSING = ("no leader", "leader changed", "not leader", "timed out", "too many requests", "server stopped")
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
    *((text, Kind.PASSING) for text in _PASSING),
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


class Unreachable(Exception):
    """A member that cannot be reached, or whose answer did not come. Never leaves this distribution.

    Args:
        reason: Why, in a few words.
        final: Whether trying again is of no use: its certificate is not to be trusted, for instance.
        mute: Whether no server took the connection, or the server closed it without an answer.
    """

    def __init__(self, reason: str, *, final: bool = False, mute: bool = False) -> None:
        super().__init__(reason)
        self.final, self.mute = final, mute


def hung_up(site: Site) -> str:
    """Return the possible reason why a member hangs up before its first answer, for the end of a message."""
    if site.endpoint.tls:
        return "; if it wants a client's certificate, see --rdzv_conf cert and key"
    return "; if it speaks TLS, the endpoint must say https://"


class _AtOnce(http.client.HTTPConnection):
    """Sends a request's head and body together: in one packet, mostly, where the standard library makes two."""

    _unsent: tuple[bytes, ...] = ()

    def send(self, data: Any) -> None:
        """Keep it until the request is complete."""
        self._unsent = (*self._unsent, data)

    def flush(self) -> None:
        """Send what was kept."""
        whole, self._unsent = b"".join(self._unsent), ()
        super().send(whole)


class Gateway:
    """A connection. Making it raises Unreachable if no server listens there, or it does not speak TLS or HTTP.

    To ask raises Refusal if the member does not do it, and Unreachable if there was no answer, or no further one: then
    it is not known whether it was done.
    """

    def __init__(self, site: Site, context: ssl.SSLContext | None, timeout: float) -> None:
        self.site = site
        self._socket = _dial(site, context, timeout)
        self._http = _AtOnce(site.endpoint.host, site.endpoint.port)
        self._http.sock = self._socket
        self._http.auto_open = 0  # a connection that broke stays broken
        self._doubt = hung_up(site)  # why there may be no answer, as long as there was none

    def close(self) -> None:
        """Close the connection; whatever waits for an answer in another thread ends with :class:`Unreachable`."""
        with contextlib.suppress(OSError):  # not connected any more
            # Not SSLSocket's own, which takes the TLS state away from under a thread that is reading.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def discard(self) -> None:
        """Close the connection and give its descriptor back; only its own thread may."""
        self.close()
        self._http.close()
        self._socket.close()

    def post(self, path: str, body: bytes, token: str | None, timeout: float) -> dict[str, Any]:
        """Ask, and read the answer; each wait for a part of it takes ``timeout`` seconds at most."""
        with _reported(timeout, self._doubt):
            text = self._ask(path, body, token, timeout).read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise Unreachable(f"it answered with more than {MOST_BYTES} bytes", final=True)
            said = json.loads(text.partition(b"\n")[0])  # of a stream (a lease is kept alive by one) the first message
        return _message(said)

    def stream(self, path: str, body: bytes, token: str | None, timeout: float) -> Iterator[dict[str, Any]]:
        """Ask, and read one message after the other, for as long as they come; the first one is waited for here.

        If that is a Refusal, this connection has been used up.
        """
        with _reported(timeout, self._doubt):
            answer = self._ask(path, body, token, timeout)
            said = json.loads(answer.readline(MOST_BYTES))
            self._socket.settimeout(None)
        if (first := _message(said)).get("canceled"):
            raise from_text(str(first.get("cancel_reason", "it was cancelled")))
        return _messages(answer)

    def _ask(self, path: str, body: bytes, token: str | None, timeout: float) -> http.client.HTTPResponse:
        # A member that has lost its cluster is to say so, rather than to keep a watch waiting in vain.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if token is not None:
            headers["Authorization"] = token
        self._socket.settimeout(timeout)
        self._http.request("POST", path, body, headers)
        self._http.flush()
        answer = self._http.getresponse()
        self._doubt = ""
        if answer.status != http.HTTPStatus.OK:
            raise refusal(answer.status, answer.read(MOST_BYTES))
        return answer


def _messages(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while True:
        with _reported(0.0, ""):
            line = answer.readline(MOST_BYTES)
            if not line:
                raise Unreachable("it has ended the stream")
            said = json.loads(line)
        yield _message(said)


def _message(said: Any) -> dict[str, Any]:
    if isinstance(said, dict) and isinstance(error := said.get("error"), dict):
        raise from_error(error)
    result = said.get("result", said) if isinstance(said, dict) else None
    if isinstance(result, dict) and "header" in result:  # which every answer of etcd's has
        return result
    raise Unreachable("it answered with something other than etcd's JSON", final=True)


@contextlib.contextmanager
def _reported(timeout: float, doubt: str) -> Iterator[None]:
    """Raise each error of a connection as :class:`Unreachable`; ``doubt`` is added where the member breaks it."""
    try:
        yield
    except (Refusal, Unreachable):
        raise
    except TimeoutError as exc:
        if exc.errno is not None:  # the kernel's: nothing that was sent is acknowledged
            raise Unreachable("its host is gone, or the network in between") from exc
        raise Unreachable(f"it has not answered for {timeout:.2g} s") from exc
    except ssl.SSLError as exc:
        raise Unreachable(f"TLS broke: {exc.reason or exc}{doubt}", mute=bool(doubt)) from exc
    except http.client.RemoteDisconnected as exc:
        raise Unreachable(f"it hung up without an answer{doubt}", mute=bool(doubt)) from exc
    except OSError as exc:
        raise Unreachable(f"{exc.strerror or exc}{doubt}", mute=bool(doubt)) from exc
    except http.client.HTTPException as exc:
        raise Unreachable(f"the connection broke: {type(exc).__name__}") from exc
    except (ValueError, AttributeError) as exc:  # no JSON; a socket or its file that another thread has closed
        raise Unreachable(f"the connection or the answer is broken: {exc}") from exc


def _dial(site: Site, context: ssl.SSLContext | None, timeout: float) -> socket.socket:
    plain, taken = socket.socket(site.family, socket.SOCK_STREAM), False
    try:
        plain.settimeout(min(timeout, CONNECT))
        plain.connect((site.address, site.endpoint.port))
        taken = True
        plain.settimeout(timeout)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, setting in _TCP.items():
            plain.setsockopt(socket.IPPROTO_TCP, option, setting)
        if not site.endpoint.tls:
            return plain
        assert context is not None
        return context.wrap_socket(plain, server_hostname=site.endpoint.host)
    except OSError as exc:
        waited = plain.gettimeout()
        plain.close()
        if isinstance(exc, TimeoutError):
            raise Unreachable(f"no answer for {waited:.2g} s", mute=not taken) from exc
        raise _not_connected(exc, tls=site.endpoint.tls) from exc


def _not_connected(exc: OSError, *, tls: bool) -> Unreachable:
    match exc:
        case ssl.SSLCertVerificationError():
            reason = f"its certificate is not to be trusted: {exc.verify_message}"
            return Unreachable(f"{reason}; see --rdzv_conf cacert=FILE", final=True)
        case ssl.SSLEOFError():
            doubt = "; if it speaks none, write http:// before the host"
            return Unreachable(f"it hung up when TLS was to begin{doubt}", mute=True)
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "HTTP_REQUEST" | "RECORD_LAYER_FAILURE"):
            return Unreachable("it does not speak TLS; write http:// before the host", final=True)
        case ssl.SSLError():
            return Unreachable(f"TLS is refused: {exc.reason or exc}; see --rdzv_conf cert and key", final=True)
    reset = tls and isinstance(exc, ConnectionResetError)  # as it may look when it hangs up
    doubt = "; if it speaks no TLS, write http:// before the host" if reset else ""
    return Unreachable(f"{exc.strerror or exc}{doubt}", mute=True)
