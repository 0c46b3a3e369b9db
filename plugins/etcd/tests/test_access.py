"""Passwords, certificates, and what is said when one is wrong; no password is ever shown."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import traceback
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import trustme
from backends import opened, parameters
from etcd_servers import Etcd, administer, asked, refusing_port, running

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link
from elastic_rdzv_etcd import options, plugin, plugin_v2
from elastic_rdzv_etcd.backend import EtcdBackend, Keys
from elastic_rdzv_etcd.client import View, Watch
from elastic_rdzv_etcd.options import DEFAULTS, Options
from elastic_testing.connections import long_wait, woken
from elastic_testing.race import PATIENCE, background

PASSWORD = "open, Sesame!"
FIRST = Link(1, "first")
IN_TIME = {"connect_timeout": "2"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Etcd]:
    """A server with users: ``trainer`` may do everything below /elastic/, and ``stranger`` nothing."""
    flags = ["--auth-token=simple", "--auth-token-ttl=1"]
    with running(tmp_path / "guarded", flags=flags) as etcd:
        below = {"key": _base64("/elastic/"), "range_end": _base64("/elastic0"), "permType": "READWRITE"}
        administer(etcd, "/v3/auth/role/add", {"name": "training"})
        administer(etcd, "/v3/auth/role/grant", {"name": "training", "perm": below})
        for user in ("root", "trainer", "stranger"):
            administer(etcd, "/v3/auth/user/add", {"name": user, "password": PASSWORD})
        administer(etcd, "/v3/auth/role/add", {"name": "root"})
        administer(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        administer(etcd, "/v3/auth/user/grant", {"user": "trainer", "role": "training"})
        administer(etcd, "/v3/auth/enable", {})
        yield etcd


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return str(path)


def entered(server: Etcd, **config: str) -> EtcdBackend:
    patient = {"connect_timeout": f"{PATIENCE:g}", "read_timeout": f"{PATIENCE:g}"}
    return plugin.elastic_make_rendezvous(parameters(server.endpoint, **config, **patient))


def test_a_user_with_a_password_needs_no_more_than_the_prefix(guarded: Etcd, password_file: str) -> None:
    backend = entered(guarded, user="trainer", password_file=password_file)
    other = backend.connect()
    assert backend.enter("node", b"value") == 1
    assert backend.append(ORIGIN, FIRST, b"data")
    assert other.wait(Cursor(), roster=True, timeout=60).head == 1
    assert other.heartbeat("node", 1, "node").head == 1
    assert other.erase()
    assert other.heartbeat("node", 1, "node").head == 0
    other.close()
    backend.close()


def forget_tokens(server: Etcd) -> None:
    said = asked(server, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
    administer(server, "/v3/auth/disable", {}, authorization=said["token"])
    administer(server, "/v3/auth/enable", {})


def test_a_token_that_is_no_longer_good_is_renewed(guarded: Etcd, password_file: str) -> None:
    backend = entered(guarded, user="trainer", password_file=password_file)
    assert backend.append(ORIGIN, FIRST, b"data")
    worn_out = backend._cluster._token
    forget_tokens(guarded)
    assert backend.read(1) == b"data"
    assert backend._cluster._token not in (None, worn_out)
    backend.close()


def test_a_watch_that_is_refused_for_its_token_gets_a_new_one(guarded: Etcd, password_file: str) -> None:
    """Tokens are each member's own affair: the one that a watch begins on may have forgotten ours."""
    backend = entered(guarded, user="trainer", password_file=password_file)
    watched = Keys("/elastic", "job").newest
    good = backend._cluster._token
    backend._cluster._token = f"{good}x"
    watch = Watch(backend._client, watched, None, View(0, {}))
    assert backend._cluster._token not in (good, f"{good}x")
    assert backend.append(ORIGIN, FIRST, b"data")
    watch.sleep(0, PATIENCE)
    assert watch.told
    watch.close()
    watch.bury()
    with pytest.raises(RendezvousConnectionError, match="does not allow the user 'trainer'"):
        Watch(backend._client, b"/others", None, View(0, {}))
    backend.close()


def test_passwords_that_etcd_begins_to_ask_for_are_given(guarded: Etcd, password_file: str) -> None:
    said = asked(guarded, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
    administer(guarded, "/v3/auth/disable", {}, authorization=said["token"])
    backend = entered(guarded, user="trainer", password_file=password_file)
    assert backend.append(ORIGIN, FIRST, b"data")
    administer(guarded, "/v3/auth/enable", {})
    assert backend.read(1) == b"data"
    backend.connect().close()
    backend.close()


def test_a_user_comes_from_the_environment(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_ETCD_USER", "trainer")
    monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", PASSWORD)
    backend = entered(guarded)
    assert backend.read(1) is None
    assert PASSWORD not in repr(backend._cluster.options)
    backend.close()


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        pytest.param("trainer", "wrong-password", "does not let the user 'trainer' in", id="wrong password"),
        pytest.param("nobody", PASSWORD, "does not let the user 'nobody' in", id="no such user"),
        pytest.param("stranger", PASSWORD, "does not allow the user 'stranger' what a job needs", id="no permission"),
        pytest.param(None, None, "does not (let|allow) a client without a user", id="no user"),
    ],
)
def test_the_error_of_a_refused_user_does_not_show_the_password(
    guarded: Etcd, monkeypatch: pytest.MonkeyPatch, user: str | None, password: str | None, words: str
) -> None:
    if user is not None and password is not None:
        monkeypatch.setenv("ELASTIC_ETCD_USER", user)
        monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", password)
    with pytest.raises(RendezvousConnectionError, match=words) as refusal:
        entered(guarded)
    told = "".join(traceback.format_exception(refusal.value))
    assert password is None or password not in told
    assert refusal.value.hint


def test_a_password_is_not_taken_from_a_command_line(password_file: str) -> None:
    for config in ({"password": PASSWORD}, {"user": "trainer", "password": PASSWORD}):
        with pytest.raises(UsageError, match="every user of this host could read") as refusal:
            Options.read(config, {})
        assert PASSWORD not in str(refusal.value)
    with pytest.raises(UsageError, match="has a user in it") as refusal:
        plugin.elastic_make_rendezvous(parameters(f"http://trainer:{PASSWORD}@127.0.0.1:2379"))
    assert PASSWORD not in str(refusal.value)
    with pytest.raises(UsageError, match="There is a password for etcd, and no user"):
        Options.read({"password_file": password_file}, {})
    with pytest.raises(UsageError, match="There is the user 'trainer' for etcd, and no password"):
        Options.read({"user": "trainer"}, {})


# Certificates --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """The authority's certificate, a client's, and its key."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    client = authority.issue_cert("client.example")
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    client.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    return {name: str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key")}


@pytest.fixture
def secured(authority: trustme.CA, files: dict[str, str], tmp_path: Path) -> Iterator[Etcd]:
    """A server that speaks TLS, and only with those who have a certificate of the same authority."""
    own = authority.issue_cert("127.0.0.1", "localhost")
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    own.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    flags = [f"--cert-file={tmp_path / 'server.pem'}", f"--key-file={tmp_path / 'server.key'}", "--client-cert-auth"]
    flags += [f"--trusted-ca-file={files['ca.pem']}"]
    with running(tmp_path / "secured", flags=flags, tls=True) as etcd:
        yield etcd


def test_both_sides_show_certificates(secured: Etcd, files: dict[str, str]) -> None:
    config = {"cacert": files["ca.pem"], "cert": files["client.pem"], "key": files["client.key"]}
    for endpoint in (secured.endpoint, f"https://localhost:{secured.port}"):
        backend = plugin.elastic_make_rendezvous(parameters(endpoint, **config))
        backend.append(ORIGIN, FIRST, b"data")
        other = backend.connect()
        assert other.wait(Cursor(), roster=True, timeout=60).head == 1
        other.close()
        backend.close()
    over_v2 = plugin_v2.elastic_make_rendezvous(parameters(secured.endpoint, "v2", **config))
    assert over_v2.append(ORIGIN, FIRST, b"data")
    assert over_v2.read(1) == b"data"
    over_v2.close()


def test_a_wait_over_tls_can_be_ended(secured: Etcd, files: dict[str, str]) -> None:
    config = {"ca_cert": files["ca.pem"], "ssl_cert": files["client.pem"], "ssl_cert_key": files["client.key"]}
    backend = plugin.elastic_make_rendezvous(parameters(secured.endpoint, **config))
    waiting = long_wait(backend, Cursor(), roster=True)
    backend.close()
    with pytest.raises(RendezvousConnectionError, match="is closed"):
        woken(waiting, "close()")


def test_a_wrong_authority_is_named(secured: Etcd, files: dict[str, str], tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    config = {"cacert": str(tmp_path / "other.pem"), "cert": files["client.pem"], "key": files["client.key"]}
    with pytest.raises(RendezvousConnectionError, match=r"is not to be trusted: .*see --rdzv_conf cacert=FILE"):
        plugin.elastic_make_rendezvous(parameters(secured.endpoint, **config))
    with pytest.raises(RendezvousConnectionError, match="TLS is refused or not to be trusted"):
        plugin_v2.elastic_make_rendezvous(parameters(secured.endpoint, **config))


def test_of_several_members_one_that_is_not_to_be_trusted_is_passed_over(
    secured: Etcd, files: dict[str, str], tmp_path: Path
) -> None:
    config = {"cacert": files["ca.pem"], "cert": files["client.pem"], "key": files["client.key"]}
    stranger = trustme.CA().issue_cert("127.0.0.1")
    stranger.cert_chain_pems[0].write_to_path(str(tmp_path / "stranger.pem"))
    stranger.private_key_pem.write_to_path(str(tmp_path / "stranger.key"))
    flags = [f"--cert-file={tmp_path / 'stranger.pem'}", f"--key-file={tmp_path / 'stranger.key'}"]
    with running(tmp_path / "strange", flags=flags, tls=True) as strange:
        for hooks in (plugin, plugin_v2):
            for first, second in ((strange, secured), (secured, strange)):
                both = parameters(f"{first.endpoint},{second.endpoint}", **config)
                backend = hooks.elastic_make_rendezvous(both)
                assert backend.read(1) is None
                backend.close()


@pytest.mark.parametrize("hooks", [plugin, plugin_v2])
def test_a_missing_client_certificate_and_a_missing_scheme_are_named(
    hooks: ModuleType, secured: Etcd, files: dict[str, str]
) -> None:
    with pytest.raises(RendezvousConnectionError, match=r"--rdzv_conf .*cert and key"):
        hooks.elastic_make_rendezvous(parameters(secured.endpoint, cacert=files["ca.pem"], **IN_TIME))
    with pytest.raises(RendezvousConnectionError, match="if it speaks TLS, the endpoint must say https://"):
        hooks.elastic_make_rendezvous(parameters(secured.endpoint, **IN_TIME))


def test_tls_where_there_is_none_is_named(server: Etcd, files: dict[str, str]) -> None:
    with pytest.raises(RendezvousConnectionError, match="write http:// before the host"):
        plugin.elastic_make_rendezvous(parameters(f"https://{server.endpoint}", cacert=files["ca.pem"]))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cacert": "/no/such/file"}, "'/no/such/file', cannot be used: No such file"),
        ({"key": "/no/such/file"}, "and no certificate"),
        ({"cert": __file__}, "client certificate and its key.*cannot be used"),
        ({"protocol": "ftp"}, "neither http nor https"),
        ({"protocol": "http", "cacert": "x"}, "protocol=http, and names certificates"),
        ({"cacert": "x", "ca_cert": "y"}, "cacert and ca_cert, which mean the same"),
        ({"connect_timeout": "soon"}, "'soon' is not a positive number of seconds"),
        ({"durable": "perhaps"}, "neither true nor false"),
        ({"password_file": "/no/such/file"}, "cannot be read: No such file"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(config: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plugin.elastic_make_rendezvous(parameters("127.0.0.1:1", **config))


@pytest.mark.parametrize(("given", "tls"), [("hTTp", False), (" HTTPS ", True)])
def test_a_protocol_is_read_in_any_case_as_torch_does(given: str, tls: bool) -> None:
    assert Options.read({"protocol": given}, {}).tls is tls


# Nobody there --------------------------------------------------------------------------------------------------------


def test_the_error_without_a_listener_names_every_endpoint(server: Etcd) -> None:
    with refusing_port() as one, refusing_port() as two:
        with pytest.raises(RendezvousConnectionError, match="Connection refused") as refusal:
            plugin.elastic_make_rendezvous(parameters(f"127.0.0.1:{one},127.0.0.1:{two}", connect_timeout="0.3"))
        assert refusal.value.hint
        assert all(f"http://127.0.0.1:{port}: Connection refused" in str(refusal.value) for port in (one, two))
        with pytest.raises(RendezvousConnectionError, match="Connection refused"):
            plugin_v2.elastic_make_rendezvous(parameters(f"127.0.0.1:{one}", connect_timeout="0.3"))


@pytest.mark.parametrize("hooks", [plugin, plugin_v2])
def test_a_server_that_does_not_listen_is_tried_for_less_long_than_a_busy_one_unless_configured(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(DEFAULTS, connect_timeout=3600.0, listen_timeout=0.2)
    monkeypatch.setattr(options, "DEFAULTS", patient)
    for config, least in (({}, 0.2), ({"connect_timeout": "0.6"}, 0.6)):
        refused = pytest.raises(RendezvousConnectionError, match="Connection refused")
        with refusing_port() as port, refused as refusal:
            hooks.elastic_make_rendezvous(parameters(f"127.0.0.1:{port}", **config))
        [tried] = re.findall(r"after ([0-9.]+) s", refusal.value.message)
        assert float(tried) >= least


def test_of_several_endpoints_one_that_serves_is_found(server: Etcd, prefix: str) -> None:
    with refusing_port() as port:
        for dead in (f"127.0.0.1:{port}", "no.such.host.invalid"):
            for endpoint in (f"{dead},{server.endpoint}", f"{server.endpoint},{dead}"):
                backend = opened(endpoint, prefix, "job")
                assert backend.read(1) is None
                backend.close()


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that drops whatever comes, as a firewall does: its queue of connections is full."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield port


def test_a_host_that_drops_what_comes_is_given_up(deaf: int, server: Etcd, prefix: str) -> None:
    for hooks in (plugin, plugin_v2):
        with pytest.raises(RendezvousConnectionError, match="no answer"):
            hooks.elastic_make_rendezvous(parameters(f"127.0.0.1:{deaf}", connect_timeout="0.5"))
        for endpoint in (f"127.0.0.1:{deaf},{server.endpoint}", f"{server.endpoint},127.0.0.1:{deaf}"):
            backend = hooks.elastic_make_rendezvous(parameters(endpoint, etcd_prefix=prefix))
            assert backend.read(1) is None
            backend.close()


def test_a_listener_that_says_nothing_is_not_waited_for() -> None:
    unanswered = pytest.raises(RendezvousConnectionError, match="has not answered for")
    with socket.create_server(("127.0.0.1", 0)) as silent, unanswered:
        plugin.elastic_make_rendezvous(parameters(f"127.0.0.1:{silent.getsockname()[1]}", connect_timeout="0.5"))


def test_a_server_of_another_kind_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                while connection.recv(1 << 16):  # it hangs up
                    pass

        answering = background(answer)
        with pytest.raises(RendezvousConnectionError, match="answered with something other than etcd's JSON"):
            plugin.elastic_make_rendezvous(parameters(f"127.0.0.1:{other.getsockname()[1]}"))
        answering.result(PATIENCE)


def test_a_server_without_api_v2_is_answered_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path / "v3", flags=["--enable-v2=false"]) as modern:
        with pytest.raises(RendezvousConnectionError, match="does not serve API v2") as refusal:
            plugin_v2.elastic_make_rendezvous(parameters(modern.endpoint))
        assert "--rdzv_backend=etcd" in str(refusal.value)
        assert "--enable-v2" in str(refusal.value)


def test_v2_lets_nobody_in_with_a_wrong_password(own_server: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"Basic {_base64(f'root:{PASSWORD}')}"
    administer(own_server, "/v2/auth/users/root", {"user": "root", "password": PASSWORD}, method="PUT")
    administer(own_server, "/v2/auth/enable", {}, method="PUT", authorization=root)
    administer(own_server, "/v2/auth/roles/guest", {}, method="DELETE", authorization=root)
    monkeypatch.setenv("ELASTIC_ETCD_USER", "root")
    monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", "wrong")
    with pytest.raises(RendezvousConnectionError, match="does not let the user 'root' in"):
        plugin_v2.elastic_make_rendezvous(parameters(own_server.endpoint))
    monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", PASSWORD)
    backend = plugin_v2.elastic_make_rendezvous(parameters(own_server.endpoint))
    assert backend.append(ORIGIN, FIRST, b"data")
    backend.close()


def test_the_plugins_are_found_by_their_entry_points_and_import_no_client_until_they_are_used() -> None:
    script = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "for name in ('etcd', 'etcd-v2'):\n"
        "    [point] = entry_points(group='elastic.rendezvous', name=name)\n"
        "    options = point.load().elastic_rendezvous_options()\n"
        "    assert {'cacert', 'user', 'password_file', 'etcd_prefix'} <= set(options.conf), options\n"
        "assert not {'http.client', 'ssl', 'urllib3', 'etcd'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
