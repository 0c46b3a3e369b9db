"""Endpoints and options are read as users write them, or refused; a password is never written back."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous.options import HostPort
from elastic_rdzv_redis.options import Credentials, Endpoint, Options


def server(name: str = "host", port: int = 6379, **more: object) -> Endpoint:
    return Endpoint(hosts=(HostPort(name, port),), **more)  # type: ignore[arg-type]  # mixed kinds, for a table


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("host", server()),
        ("host:1", server(port=1)),
        ("10.0.0.1:1", server("10.0.0.1", 1)),
        ("[fd00::1]", server("fd00::1")),
        ("[fe80::1%eth0]:1", server("fe80::1%eth0", 1)),
        ("redis://host", server()),
        ("redis://host:1/", server(port=1)),
        ("redis://host:1/2", server(port=1, db=2)),
        ("rediss://host", server(tls=True)),
        ("redis://user:pa:ss@host", server(username="user", password="pa:ss")),
        ("redis://:p%40s%2Fs@host", server(password="p@s/s")),
        ("redis://user@host", server(username="user")),
        ("redis://:@host", server(password="")),
        ("unix:///run/redis.sock", Endpoint(path="/run/redis.sock")),
        ("unix://u:p@/run/redis.sock?db=3", Endpoint(path="/run/redis.sock", db=3, username="u", password="p")),
    ],
)
def test_an_endpoint_is_read(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it names no host"),
        ("redis://", "it names no host"),
        ("host:0", "'0' is not a port"),
        ("host:65536", "'65536' is not a port"),
        ("host:http", "'http' is not a port"),
        ("fd00::1", "an address of IPv6 has brackets"),
        ("host/2", "a database needs a URL"),
        ("redis://host/two", "'two' is not the number of a database"),
        ("redis://host?db=1", "is not of the form HOST"),
        ("http://host", "it is not of the form"),
        ("a,b", "it names 2 servers"),
        ("u:s3cret@host", "need a URL"),
        ("redis://u:s3cret@", "it names no host"),
        ("redis://u:s3cret@host:1x", "'1x' is not a port"),
        ("redis://u:s3c/ret@host:1x", "'1x' is not a port"),
        ("unix://run/redis.sock", "must begin with /"),
        ("unix:///run/redis.sock?user=me", "there is no option 'user'"),
    ],
)
def test_a_malformed_endpoint_is_refused_without_its_password(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.replace("?", r"\?")) as refusal:
        Endpoint.parse(text)
    assert "s3c" not in str(refusal.value)
    assert refusal.value.hint


def test_sentinels_are_several_and_have_a_port_of_their_own() -> None:
    endpoint = Endpoint.parse("rediss://u:p@a,b:1,[::1]/2", sentinels=True)
    assert endpoint.hosts == (HostPort("a", 26379), HostPort("b", 1), HostPort("::1", 26379))
    assert (endpoint.tls, endpoint.db, str(endpoint)) == (True, 2, "a:26379,b:1,[::1]:26379")


def test_no_text_of_an_endpoint_has_its_password() -> None:
    endpoint = Endpoint.parse("redis://user:s3cret@host/1")
    options = Options.read("redis://user:s3cret@host/1", {}, {})
    assert options.credentials.password == "s3cret"
    assert "s3cret" not in f"{endpoint} {endpoint!r} {options} {options!r} {options.credentials}"


@pytest.mark.parametrize(
    ("endpoint", "config", "environ", "credentials"),
    [
        ("host", {}, {}, Credentials()),
        ("host", {}, {"ELASTIC_REDIS_PASSWORD": "p"}, Credentials(password="p")),
        (
            "host",
            {},
            {"ELASTIC_REDIS_USERNAME": "u", "ELASTIC_REDIS_PASSWORD": "p"},
            Credentials(username="u", password="p"),
        ),
        ("host", {"username": "u", "password": "p"}, {}, Credentials(username="u", password="p")),
        ("redis://u:p@host", {}, {"ELASTIC_REDIS_PASSWORD": "other"}, Credentials(username="u", password="p")),
        ("redis://u@host", {"password": "p"}, {}, Credentials(username="u", password="p")),
    ],
)
def test_a_password_comes_from_one_of_several_places(
    endpoint: str, config: dict[str, str], environ: dict[str, str], credentials: Credentials
) -> None:
    assert Options.read(endpoint, config, environ).credentials == credentials


def test_a_password_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    credentials = Options.read("host", {"password_file": str(file), "username": "u"}, {}).credentials
    assert credentials.now() == ("u", "first")
    file.write_text("second")
    assert credentials.now() == ("u", "second")
    file.write_text("\n")
    with pytest.raises(RendezvousConnectionError, match="is empty"):
        credentials.now()
    file.unlink()
    with pytest.raises(RendezvousConnectionError, match="cannot be read: No such file"):
        credentials.now()


@pytest.mark.parametrize(
    ("endpoint", "config", "why"),
    [
        ("redis://:s3cret@host", {"password": "s3cret"}, "Both the URL and --rdzv_conf password give a password"),
        ("redis://u:s3cret@host", {"username": "v"}, "The URL says user 'u'"),
        ("redis://u@host", {}, "The user 'u' has no password"),
        ("host", {"password_file": "/no/such"}, "there is no such file"),
        ("host", {"cacert": "/etc/ca"}, "does not speak TLS"),
        ("rediss://host", {"key": "/etc/key"}, "needs the certificate"),
        ("rediss://host", {"cacert": "/no/such"}, "there is no such file"),
        ("host", {"sentinel": ""}, "the master has no name"),
        ("host", {"sentinel_username": "u"}, "no effect without sentinel"),
        ("unix:///s", {"sentinel": "m"}, "sentinels have hosts"),
        ("host", {"prefix": "a*"}, "a prefix has"),
        ("host", {"prefix": ""}, "a prefix has"),
        ("host", {"read_timeout": "0"}, "not a positive number of seconds"),
        ("host", {"connect_timeout": "soon"}, "not a positive number of seconds"),
    ],
)
def test_options_that_cannot_be_are_refused(endpoint: str, config: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refusal:
        Options.read(endpoint, config, {})
    assert "s3cret" not in str(refusal.value)
