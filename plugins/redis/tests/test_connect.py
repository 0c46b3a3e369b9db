"""Getting in: names, passwords, TLS, access lists, sentinels; and servers that will not do."""

from __future__ import annotations

import math
import re
import socket
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest
import redis
from redis_servers import Daemon, authority, certificate, opened, redis_server, running, sentinel_set

from elastic_core.errors import ElasticError, RendezvousConnectionError, UsageError
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link
from elastic_core.rendezvous.options import HostPort
from elastic_rdzv_redis.backend import RedisBackend
from elastic_rdzv_redis.connect import Dialler, Master
from elastic_rdzv_redis.options import Endpoint, Options
from elastic_testing.backend_conformance import BackendConformance
from elastic_testing.connections import MakeBackend, long_wait, woken
from elastic_testing.race import PATIENCE, background

FIRST, SECOND = Link(1, "first"), Link(2, "second")
PASSWORD = "s3cret/with@all:kinds%of=letters"
QUOTED = "s3cret%2Fwith%40all:kinds%25of=letters"
README = Path(__file__).parents[1] / "README.md"


def refused(endpoint: str, match: str, **config: str) -> ElasticError:
    """The error with which a connection is refused."""
    with pytest.raises(RendezvousConnectionError, match=match) as refusal:
        opened(endpoint, **config).close()
    return refusal.value


def works(endpoint: str, **config: str) -> None:
    with closing(opened(endpoint, **config)) as backend:
        backend.enter("node", b"")


# Passwords and access lists ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server whose default user has a password, and which has a socket."""
    folder = tmp_path_factory.mktemp("guarded")
    with redis_server(folder / "server", f'requirepass "{PASSWORD}"', f"unixsocket {folder}/redis.sock") as server:
        yield server


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    return str(path)


def test_a_password_may_come_from_every_place(
    guarded: Daemon, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works(f"redis://:{QUOTED}@{guarded.endpoint}")
    works(f"redis://default:{QUOTED}@{guarded.endpoint}")
    works(guarded.endpoint, password=PASSWORD)
    works(guarded.endpoint, password_file=password_file)
    works(f"unix://:{QUOTED}@{guarded.folder.parent}/redis.sock")
    works(f"unix://{guarded.folder.parent}/redis.sock?db=1", password_file=password_file)
    monkeypatch.setenv("ELASTIC_REDIS_PASSWORD", PASSWORD)
    works(guarded.endpoint)


@pytest.mark.parametrize(
    ("user", "match"),
    [(":s3cret", "invalid username-password pair"), ("nobody:s3cret", "invalid username-password pair")],
)
def test_a_wrong_password_is_said_without_it(guarded: Daemon, user: str, match: str) -> None:
    error = refused(f"redis://{user}@{guarded.endpoint}", match)
    assert error.message.startswith(f"The Redis server at {guarded.endpoint} does not let us in: ")
    assert "Check the user's name and the password; see --rdzv_conf password_file," in str(error)
    assert "s3cret" not in "".join(traceback.format_exception(error))


def test_no_password_is_said(guarded: Daemon) -> None:
    error = refused(guarded.endpoint, "does not let us in: NOAUTH Authentication required")
    assert "password_file" in str(error)


def test_a_password_that_the_server_does_not_want_is_said(server: Daemon) -> None:
    refused(f"redis://:s3cret@{server.endpoint}", "without any password configured")


@pytest.mark.parametrize("user", [":s3cret", "user:s3cret"])
def test_a_server_that_repeats_what_it_was_sent_does_not_give_the_password_away(tmp_path: Path, user: str) -> None:
    with redis_server(tmp_path / "server", 'rename-command AUTH ""') as server:
        error = refused(f"redis://{user}@{server.endpoint}", "refuses: .*unknown command ['`]AUTH['`]$")
    assert "s3cret" not in "".join(traceback.format_exception(error))


def access_line() -> str:
    """The line that the README tells users to give their server."""
    [line] = re.findall(r"^ACL SETUSER .*", README.read_text(), re.MULTILINE)
    return str(line)


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server with exactly the README's user, and no other user with a permission."""
    with redis_server(tmp_path_factory.mktemp("walled") / "server") as server:
        with redis.Redis(port=server.port) as admin:
            admin.execute_command(*access_line().replace(">PASSWORD", ">s3cret").split())
            admin.execute_command("ACL", "SETUSER", "admin", "on", ">admin", "+@all", "~*")
            admin.execute_command("ACL", "SETUSER", "default", "off")
        yield server


@pytest.mark.variant
class TestUnderTheAccessListOfTheReadme(BackendConformance):
    @pytest.fixture
    def make_backend(self, walled: Daemon) -> Iterator[MakeBackend]:
        with redis.Redis(port=walled.port, username="admin", password="admin") as admin:
            admin.flushall()
            admin.acl_log_reset()
            yield partial(opened, f"redis://elastic:s3cret@{walled.endpoint}")
            assert admin.acl_log() == [], "the server has refused nothing"


def test_a_missing_permission_is_reported_before_anything_is_written(walled: Daemon) -> None:
    endpoint = f"redis://elastic:s3cret@{walled.endpoint}"
    commands = re.findall(r"\+(\w+)", access_line())
    assert {"xread", "hdel", "info", "evalsha"} <= set(commands)
    with redis.Redis(port=walled.port, username="admin", password="admin") as admin:
        admin.flushall()
        assert "README" in str(refused(endpoint, r"refuses.*[Nn]o permission", prefix="other"))
        for command in commands:
            admin.execute_command("ACL", "SETUSER", "elastic", f"-{command}")
            with pytest.raises(
                RendezvousConnectionError, match=rf"(?i)refuses.*permission.* to run .*{command}\b"
            ) as said:
                works(endpoint)
            assert "README" in str(said.value)
            assert admin.keys() == []
            admin.execute_command("ACL", "SETUSER", "elastic", f"+{command}")
        works(endpoint)


# TLS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``ca``, what it has signed for the server and a client, and ``other``, a stranger's authority."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = authority(folder, "ca")
    certificate(folder, "stranger", authority(folder, "other"))
    certificate(folder, "server", ca)
    certificate(folder, "named", ca, alternative="DNS:redis.example")
    certificate(folder, "client", ca, alternative="DNS:client")
    return folder


@contextmanager
def tls_server(folder: Path, certificates: Path, name: str = "server", *, clients: bool) -> Iterator[Daemon]:
    files = {kind: certificates / f"{name}.{kind}" for kind in ("crt", "key")}
    with redis_server(
        folder,
        "port 0",
        "tls-port {port}",
        f"tls-cert-file {files['crt']}",
        f"tls-key-file {files['key']}",
        f"tls-ca-cert-file {certificates / 'ca.crt'}",
        f"tls-auth-clients {'yes' if clients else 'no'}",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Daemon]:
    """A server that speaks TLS only, to clients with a certificate only."""
    with tls_server(tmp_path_factory.mktemp("tls") / "server", certificates, clients=True) as server:
        yield server


def test_both_sides_show_a_certificate(encrypted: Daemon, certificates: Path) -> None:
    files = {"cacert": str(certificates / "ca.crt"), "cert": str(certificates / "client.crt")}
    backend = opened(f"rediss://{encrypted.endpoint}", key=str(certificates / "client.key"), **files)
    waiter = backend.connect()
    waiting = long_wait(waiter, Cursor(), roster=True)
    assert backend.append(ORIGIN, FIRST, b"entry")
    assert woken(waiting, "append()").head == 1
    waiting = long_wait(waiter, Cursor(1), roster=False)
    waiter.close()
    with pytest.raises(RendezvousConnectionError, match="is closed"):
        waiting.result(PATIENCE)
    backend.close()


def test_a_certificate_of_another_authority_is_not_trusted(encrypted: Daemon, certificates: Path) -> None:
    for config in ({}, {"cacert": str(certificates / "other.crt")}):
        error = refused(f"rediss://{encrypted.endpoint}", "is not to be trusted: ", **config)
        assert "cacert=FILE" in str(error)


def test_a_server_that_wants_a_certificate_and_gets_none_is_named(encrypted: Daemon, certificates: Path) -> None:
    ca, stranger = (str(certificates / f"{name}.crt") for name in ("ca", "stranger"))
    error = refused(f"rediss://{encrypted.endpoint}", encrypted.endpoint, cacert=ca)
    assert "If it wants a client's certificate, see --rdzv_conf cert and key." in str(error)
    key = str(certificates / "stranger.key")
    error = refused(f"rediss://{encrypted.endpoint}", encrypted.endpoint, cacert=ca, cert=stranger, key=key)
    assert f"It may not trust the client's certificate, --rdzv_conf cert={stranger}" in str(error)


def test_a_certificate_for_another_name_needs_that_name(tmp_path: Path, certificates: Path) -> None:
    ca = str(certificates / "ca.crt")
    with tls_server(tmp_path / "server", certificates, "named", clients=False) as server:
        error = refused(f"rediss://{server.endpoint}", r"is not to be trusted: .*127\.0\.0\.1", cacert=ca)
        assert "tls_hostname" in str(error)
        works(f"rediss://{server.endpoint}", cacert=ca, tls_hostname="redis.example")


def test_tls_to_a_server_without_and_the_reverse_are_told(server: Daemon, encrypted: Daemon) -> None:
    assert "redis://" in str(refused(f"rediss://{server.endpoint}", "does not answer in TLS"))
    error = refused(encrypted.endpoint, f"The Redis server at {encrypted.endpoint} is gone")
    assert "If it speaks TLS, write rediss:// before the host." in str(error)


@pytest.mark.parametrize(("key", "said"), [("cacert", "holds no certificates"), ("cert", "are no certificate")])
def test_files_that_hold_something_else_are_refused(tmp_path: Path, key: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text("nothing")
    with pytest.raises(UsageError, match=said):
        opened("rediss://127.0.0.1:1", **{key: str(path)})


# Servers that will not do, or are not there --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(server: Daemon, admin: redis.Redis, policy: str) -> None:
    admin.config_set("maxmemory-policy", policy)
    try:
        error = refused(server.endpoint, f"has maxmemory-policy {policy}")
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
    assert "CONFIG SET maxmemory-policy noeviction" in str(error)
    works(server.endpoint)


def test_a_full_server_is_said_and_the_job_goes_on_when_it_has_room(server: Daemon, admin: redis.Redis) -> None:
    backend = opened(server.endpoint)
    admin.config_set("maxmemory", 1)
    try:
        with pytest.raises(RendezvousConnectionError, match=r"refuses.*OOM") as refusal:
            backend.enter("node", b"")
        assert "memory is full" in str(refusal.value)
    finally:
        admin.config_set("maxmemory", 0)
    assert backend.enter("node", b"") == 1
    backend.close()


def test_a_port_without_a_listener_is_an_error_that_names_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    refused(f"127.0.0.1:{port}", f"No Redis server can be reached at 127.0.0.1:{port}: Connection refused")
    refused(f"unix://{tmp_path}/no.sock", "can be reached at unix://.*: No such file")


def test_a_listener_that_says_nothing_is_given_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        refused(where, f"The Redis server at {where} has not answered for", connect_timeout="0.3")
        refused(f"rediss://{where}", "does not answer in TLS", connect_timeout="0.3")


def test_a_server_of_another_kind_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = background(answer)
        refused(where, f"The server that listens at {where} is no Redis server: ")
        answering.result(PATIENCE)


def test_a_name_that_nobody_knows_is_an_error_that_says_it() -> None:
    refused("no.such.host.invalid", r"The host 'no\.such\.host\.invalid' cannot be looked up", connect_timeout="30")


def test_a_name_that_cannot_be_one_is_said() -> None:
    refused("a" * 64 + ".example", r"cannot be looked up: it cannot be a name")


def test_a_name_is_looked_up_again_when_what_answers_there_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a managed server fails over, its name moves to the new master, and the old one comes back as a replica."""
    real = socket.getaddrinfo

    def look_up(host: str, *where: int, **how: int) -> object:
        if host != "redis.example":
            return real(host, *where, **how)
        if "flags" in how:  # whether it is a number
            raise socket.gaierror
        return real("127.0.0.1", master.port, **how)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with redis_server(tmp_path / "one") as one, redis_server(tmp_path / "other") as other:
        master = one
        backend = opened("redis.example")
        master = other
        backend.connect().close()  # the one that is known still does
        with redis.Redis(port=one.port) as admin:
            admin.replicaof("127.0.0.1", other.port)
        with pytest.raises(RendezvousConnectionError, match=f"is a replica of 127.0.0.1:{other.port}"):
            backend.connect()
        after = backend.connect()
        assert after.append(ORIGIN, FIRST, b"entry")
        with redis.Redis(port=other.port) as admin:
            assert admin.keys()
        after.close()
        backend.close()


def test_a_name_is_looked_up_once(server: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *, type: int, flags: int = 0) -> object:
        if not flags & socket.AI_NUMERICHOST:
            asked.append(host)
        return real(host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    backend = opened(f"localhost:{server.port}")
    others = [backend.connect() for _ in range(3)]
    assert asked == ["localhost"]
    for each in (backend, *others):
        each.close()


# Sentinel ------------------------------------------------------------------------------------------------------------


def test_clients_find_the_new_master(tmp_path: Path) -> None:
    with sentinel_set(tmp_path) as (master, replica, sentinel):
        backend = opened(sentinel.endpoint, sentinel="mymaster")
        assert backend.append(ORIGIN, FIRST, b"entry")
        master.replicated()
        waiting = long_wait(backend, Cursor(1), roster=False)
        master.kill()
        with pytest.raises(RendezvousConnectionError, match=r"\(master 'mymaster'\) is gone"):
            waiting.result(PATIENCE)
        sentinel.wait_for_log(r"\+switch-master")
        after = backend.connect()
        assert after.read(1) == b"entry"
        assert after.append(FIRST, SECOND, b"entry")
        with redis.Redis(port=replica.port) as admin:
            assert admin.keys(), "it is the former replica"
        after.close()
        backend.close()


def confirmed(backend: RedisBackend) -> float:
    """Ask, and return what came of it."""
    backend.confirmed_at(0.0)
    assert backend._confirming is not None
    backend._confirming.join(PATIENCE)
    return backend.confirmed_at()


def test_a_server_counts_as_the_master_while_most_sentinels_name_it(tmp_path: Path) -> None:
    with sentinel_set(tmp_path) as (_, _, sentinel):
        backend = opened(sentinel.endpoint, sentinel="mymaster")
        assert backend.enter("node", b"row") == 1
        assert backend.confirmed_at() == -math.inf, "each connection by itself"
        began = time.monotonic()
        assert confirmed(backend) >= began
        asked_at, heard = backend._confirming, backend.confirmed_at(PATIENCE)
        assert backend._confirming is asked_at, "that is recent enough"
        sentinel.kill()
        assert confirmed(backend) == heard
        backend.close()


def test_no_node_enters_over_a_server_that_a_minority_of_the_sentinels_names(tmp_path: Path) -> None:
    with sentinel_set(tmp_path) as (_, _, sentinel):
        backend = opened(f"{sentinel.endpoint},127.0.0.1:1,127.0.0.1:2", sentinel="mymaster")
        with pytest.raises(RendezvousConnectionError, match=r"No majority of the sentinels names 127\.0\.0\.1:"):
            backend.enter("node", b"row")
        assert backend.roster() == []
        assert confirmed(backend) == -math.inf
        backend.close()


def test_without_sentinels_what_a_replicated_server_takes_is_contact_and_what_it_lets_one_read_is_not(
    tmp_path: Path, server: Daemon
) -> None:
    with sentinel_set(tmp_path) as (master, replica, _):
        backend = opened(master.endpoint)
        assert backend.confirmed_at() == -math.inf
        assert confirmed(backend) > 0
        replica.kill()
        with redis.Redis(port=master.port) as admin:
            while admin.info("replication")["connected_slaves"]:
                time.sleep(0.01)
        again = backend.connect()
        assert again.confirmed_at() == -math.inf, "cut off from its replica, it may be replaced"
        again.close()
        backend.close()
    alone = opened(server.endpoint)
    assert alone.confirmed_at() == alone.confirmed_at(0.0) == math.inf
    alone.close()


def test_a_replica_is_refused_and_a_master_that_becomes_one_is_left(tmp_path: Path) -> None:
    with redis_server(tmp_path / "one") as one, redis_server(tmp_path / "other") as other:
        backend = opened(one.endpoint)
        waiting = long_wait(backend, Cursor(), roster=False)
        writer = backend.connect()
        with redis.Redis(port=one.port) as admin:
            admin.replicaof("127.0.0.1", other.port)
        error = refused(one.endpoint, f"is a replica of 127.0.0.1:{other.port}")
        assert "sentinel=NAME" in str(error)
        with pytest.raises(RendezvousConnectionError, match=r"refuses.*READONLY"):
            writer.enter("node", b"")
        with pytest.raises(RendezvousConnectionError):  # it wakes who sleeps on it
            waiting.result(PATIENCE)
        writer.close()
        backend.close()


def test_sentinels_that_do_not_know_are_all_named(server: Daemon, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    error = refused(f"127.0.0.1:{port},{server.endpoint}", "No sentinel leads to the master 'm'", sentinel="m")
    assert f"127.0.0.1:{port} (sentinel): Connection refused" in str(error)
    assert f"{server.endpoint} (sentinel) refuses" in str(error)


def test_a_sentinel_that_names_a_master_which_is_gone_is_not_the_last_to_be_asked(
    server: Daemon, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        gone = probe.getsockname()[1]
    lone, other = (
        Daemon(tmp_path / str(port), ["port {port}", f"sentinel monitor m 127.0.0.1 {port} 1"], sentinel=True)
        for port in (gone, server.port)
    )
    with running(lone, other):
        opened(f"{lone.endpoint},{other.endpoint}", sentinel="m").close()
        error = refused(f"{lone.endpoint},{lone.endpoint}", r"can be reached at .*\(master 'm'\)", sentinel="m")
        assert str(gone) in error.message


class Clockwork(Dialler):
    """One whose sentinels answer at once, and whose masters take their time, by a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, named: Mapping[str, str], takes: Mapping[str, float]) -> None:
        hosts = tuple(HostPort(name, 26379) for name in named)
        super().__init__(Options(endpoint=Endpoint(hosts=hosts), sentinel="m", connect_timeout=2.0))
        self.now, self.named, self.takes = 0.0, named, takes
        self.asked: list[tuple[str, float, float]] = []
        """Which master, from when until when."""
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def _named_by(self, sentinel: HostPort, name: str, deadline: float) -> HostPort:
        if sentinel.host not in self.named or not self.named[sentinel.host]:
            raise RendezvousConnectionError(f"{sentinel} is down.")
        return HostPort(self.named[sentinel.host], 6379)

    def _to_master(self, host: HostPort | None, whose: str, deadline: float) -> Master:
        assert host is not None
        began, answers_at = self.now, self.now + self.takes[host.host]
        self.now = min(answers_at, deadline)
        self.asked.append((host.host, began, deadline))
        if answers_at > deadline:
            raise RendezvousConnectionError(f"{host} does not answer.")
        return cast("Master", host)


@pytest.mark.parametrize(
    ("named", "takes", "asked"),
    [
        pytest.param({"s1": "old", "s2": "new"}, {"old": 9, "new": 0.5}, [("old", 0, 1), ("new", 1, 2)], id="stale"),
        pytest.param({"s1": "a", "s2": "a"}, {"a": 0.9}, [("a", 0, 1)], id="agreed"),
        pytest.param({"s1": "a", "s2": "", "s3": "a"}, {"a": 0.9}, [("a", 0, 1)], id="one sentinel down"),
        pytest.param({"s1": "", "s2": "a"}, {"a": 1.9}, [("a", 0, 2)], id="the last one"),
    ],
)
def test_a_master_that_says_nothing_leaves_half_of_the_time_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
    named: Mapping[str, str],
    takes: Mapping[str, float],
    asked: list[tuple[str, float, float]],
) -> None:
    dialler = Clockwork(monkeypatch, named, takes)
    assert cast("HostPort", dialler.dial()).host == asked[-1][0]
    assert dialler.asked == asked


@pytest.mark.parametrize("last", ["a", ""], ids=["agrees", "is down"])
def test_a_master_that_nobody_says_better_than_has_what_is_left(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """A packet that is lost is sent again after a second; so is a second attempt's, at once."""
    dialler = Clockwork(monkeypatch, {"s1": "a", "s2": last}, {"a": 9})
    with pytest.raises(RendezvousConnectionError, match="a:6379 does not answer"):
        dialler.dial()
    assert dialler.asked == [("a", 0, 1), ("a", 1, 2)]


def test_a_sentinel_that_wants_a_user_needs_no_more_than_the_readme_says(
    server: Daemon, tmp_path: Path, password_file: str
) -> None:
    [permitted] = re.findall(r"^Sentinels, where they want a user: `(.*)`", README.read_text(), re.MULTILINE)
    users = ["user default off", f'user elastic on "#{sha256(PASSWORD.encode()).hexdigest()}" {permitted}']
    watch = f"sentinel monitor m 127.0.0.1 {server.port} 1"
    sentinel = Daemon(tmp_path / "sentinel", ["port {port}", watch, *users], sentinel=True)
    with running(sentinel):
        assert "sentinel_password_file" in str(refused(sentinel.endpoint, r"\(sentinel\) .*NOAUTH", sentinel="m"))
        who = {"sentinel_username": "elastic", "sentinel_password_file": password_file}
        works(sentinel.endpoint, sentinel="m", **who)
