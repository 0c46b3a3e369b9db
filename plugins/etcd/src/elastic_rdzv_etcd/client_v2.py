"""python-etcd (API v2), kept to one member at a time, to bounded waits, and to errors of ours.

The library's last release is of 2017. What it needs of today's urllib3 is given to it here: two methods of a response
that urllib3 has taken away, and a way to get at its sockets, so that another thread can end a wait.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import etcd
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_rdzv_etcd.connection import ATTEMPT, Connection, Members
from elastic_rdzv_etcd.gateway import Unreachable, hung_up
from elastic_rdzv_etcd.options import Site

NO_V2 = "404 page not found"  # the answer of a member that does not serve API v2
_MUTE = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.ProtocolError,
)
"""No server took the connection, or the server closed it without an answer."""

logging.getLogger("etcd").propagate = False  # it logs every error that we report, and some that we do not

_T = TypeVar("_T")


class _Client(etcd.Client):  # type: ignore[misc]  # it has no annotations
    """One member's client. It neither retries nor looks for other members."""

    def __init__(self, site: Site, members: Members, opened: Callable[[socket.socket], None]) -> None:
        options = members.options
        super().__init__(
            host=f"[{site.address}]" if ":" in site.address else site.address,
            port=site.endpoint.port,
            protocol="https" if site.endpoint.tls else "http",
            read_timeout=ATTEMPT,
            allow_redirect=False,
            username=options.user,
            password=options.password,
        )
        self.http.connection_pool_kw["retries"] = False
        if site.endpoint.tls:
            self.http.connection_pool_kw.update(ssl_context=members.context, server_hostname=site.endpoint.host)
        self.http.pool_classes_by_scheme = _pools(opened)

    def _check_cluster_id(self, response: Any) -> None:
        # Gone from urllib3 2.6; python-etcd asks for headers in no other way.
        response.getheader, response.getheaders = response.headers.get, lambda: response.headers
        super()._check_cluster_id(response)


def _pools(opened: Callable[[socket.socket], None]) -> dict[str, type[HTTPConnectionPool]]:
    """Return pools whose connections pass their sockets to ``opened``."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            opened(self.sock)

    class Secured(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            opened(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecuredPool(HTTPSConnectionPool):
        ConnectionCls = Secured

    return {"http": PlainPool, "https": SecuredPool}


class ClientV2(Connection):
    """One connection to whichever member answers. What it is asked to do must bear to be done twice."""

    asks_only_member_once = False

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self._client: _Client | None = None
        self._served = False  # true once a member has answered here
        self._sockets: list[socket.socket] = []

    def call(self, ask: Callable[[Any], _T], *, reaching: bool = False, once: bool = False) -> _T:
        """Return the answer of the first member that gives one.

        Args:
            ask: What to do with python-etcd's client. It may raise EtcdKeyNotFound, EtcdCompareFailed,
                EtcdAlreadyExist, EtcdWatchTimedOut and EtcdEventIndexCleared, which are answers.
            reaching: Whether it is the first question, which has a time of its own.
            once: Whether not to try again, and no other member.

        Raises:
            RendezvousConnectionError: No member answered in time, or none lets us in, or this connection is closed.
            RendezvousStateError: They refuse it for what it is.
        """

        def ask_member(site: Site, timeout: float) -> _T:
            with self._reported(site):
                answer = ask(self._at(site, timeout))
            self._served = True
            return answer

        return self._ask_any(ask_member, reaching=reaching, once=once)

    def _at(self, site: Site, timeout: float) -> _Client:
        if self._client is None or self._site != site:
            self._drop()
            self._client, self._site = _Client(site, self._members, self._opened), site
        self._client._read_timeout = timeout  # python-etcd has no other way to change it
        if self.closed:
            raise Unreachable("this connection is closed")
        return self._client

    def _opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.append(connection)
        if self.closed:
            self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):  # not connected any more
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _drop(self) -> None:
        self._hang_up()
        if self._client is not None:
            self._client.http.clear()
        with self._lock:
            self._client, self._site = None, None
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()

    @contextlib.contextmanager
    def _reported(self, site: Site) -> Iterator[None]:
        """Yield what python-etcd raises and is no answer, as errors of ours."""
        user = self._members.options.user
        try:
            yield
        except (etcd.EtcdKeyError, etcd.EtcdCompareFailed, etcd.EtcdWatchTimedOut, etcd.EtcdEventIndexCleared):
            raise
        except etcd.EtcdInsufficientPermissions as exc:
            who = "a client without a user" if user is None else f"the user {user!r}"
            raise RendezvousConnectionError(
                f"etcd at {site} does not let {who} in, or not at the keys of the job: {_text(exc)}.",
                hint="Check --rdzv_conf user=NAME,password_file=PATH, or ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD, "
                "and the user's role in API v2, which has users of its own.",
                lasting=True,
            ) from exc
        except etcd.EtcdConnectionFailed as exc:
            raise Unreachable(
                _reason(exc.cause, site, served=self._served),
                final=isinstance(exc.cause, urllib3.exceptions.SSLError),
                mute=isinstance(exc.cause, _MUTE),
            ) from exc
        except etcd.EtcdException as exc:
            if NO_V2 in str(exc):
                raise RendezvousConnectionError(
                    f"etcd at {site} does not serve API v2.",
                    hint="Use --rdzv_backend=etcd, which speaks API v3. Or start etcd with --enable-v2: 3.4 and 3.5 "
                    "have that flag, 3.6 has no API v2 any more.",
                    lasting=True,
                ) from exc
            if isinstance(exc, etcd.EtcdValueError | etcd.EtcdRootReadOnly):
                raise RendezvousStateError(f"etcd at {site} refuses what it was asked: {_text(exc)}.") from exc
            raise Unreachable(_text(exc)) from exc  # an election, a restart, an answer cut off


def _text(exc: BaseException) -> str:
    return str(exc)[:300].strip().replace("\n", " ")


def _reason(cause: BaseException | None, site: Site, *, served: bool) -> str:
    """Return what went wrong below python-etcd, without urllib3's own words for it."""
    if isinstance(cause, urllib3.exceptions.SSLError):
        return f"TLS is refused or not to be trusted: {_text(cause)}; see --rdzv_conf cacert, cert and key"
    if isinstance(cause, urllib3.exceptions.ProtocolError):
        return f"it hung up without an answer{'' if served else hung_up(site)}"
    inner = cause.__cause__ if cause is not None else None
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    if isinstance(cause, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.ReadTimeoutError):
        return "no answer in time"
    return "the connection broke" if cause is None else f"{type(cause).__name__}: {_text(cause)}"
