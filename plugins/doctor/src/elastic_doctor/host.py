"""Examine the host: the address that it would advertise, what names stand for here, its limits, what is installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from elastic_core import __version__, threads
from elastic_core.errors import RendezvousConnectionError
from elastic_core.host import (
    LOOPBACK,
    HeldPort,
    advertised_address,
    endpoint_host,
    host_name,
    installed_versions,
    parts,
    says_loopback,
)
from elastic_core.protocol import Versions
from elastic_core.rendezvous import ip_address
from elastic_doctor.findings import Finding, ok, warning, wrong
from elastic_doctor.store import PATIENCE

SLOW = 1.0  # seconds after which a resolver's answer counts as slow
LEAST_SHM = 1 << 30  # bytes of /dev/shm below which training scripts commonly run out (Docker gives 64 MiB)
LEAST_FILES = 1024  # open files below which an agent with eight workers, or a store's host, commonly runs out

_MASTER_ADDR = "MASTER_ADDR"
_SIOCGIFADDR = 0x8915  # asks for an interface's address (netdevice(7))
_T = TypeVar("_T")


def check_endpoint(endpoint: str) -> Finding:
    """Return what the hosts that an endpoint names are on this host."""
    said, unknown = [], []
    for part in parts(endpoint):
        host = endpoint_host(part)
        if host is None:
            continue
        try:
            addresses = look_up(host)
        except OSError as exc:
            unknown.append(f"the host {host!r} cannot be looked up: {_why(exc)}")
        else:
            said.append(host if addresses == [host] else f"{host} is {' and '.join(addresses)}")
    if unknown:
        seen = "; ".join([*unknown, *said])
        advice = "Check the name, this host's resolver (getent hosts NAME), or write the address itself."
        return warning("endpoint", seen, advice) if said else wrong("endpoint", seen, advice)
    return ok("endpoint", ", ".join(said) or f"{endpoint or 'none'}, which names no host")


def check_address(endpoint: str, form: str, local_addr: str | None, *, single_node: bool) -> Finding:
    """Check that other nodes can reach this one at the address of ``elastic run``: look it up, listen, connect."""
    name = "address"
    try:
        address = bounded(lambda: advertised_address(endpoint, form, local_addr, single_node=single_node))
        numbers = look_up(address)
    except RendezvousConnectionError as exc:
        return wrong(name, exc.message, exc.hint)
    except OSError as exc:
        what = f"--local_addr={local_addr}" if local_addr else "the endpoint's host"
        return wrong(name, f"{what} cannot be looked up: {_why(exc)}", "Give this host's numeric address.")
    shown = address if numbers == [address] else f"{address}, which is {' and '.join(numbers)} here"
    if single_node:
        return ok(name, f"{shown}: one node that no other node joins")
    if any(map(_is_loopback, numbers)):
        return _loopback(shown, endpoint_host(endpoint) if "HOST" in form else None, local_addr)
    if (refusal := _unreachable(address)) is not None:
        advice = f"{_another(local_addr)}, and let firewalls pass connections between the nodes."
        return wrong(
            name, f"other nodes are told {_MASTER_ADDR}={shown}; no node gets here that way: {refusal}", advice
        )
    return ok(name, f"other nodes find this one at {shown} ({_MASTER_ADDR}); it listens and answers there")


def check_host_name(address: str, environ: Mapping[str, str]) -> Finding:
    """Return what this host's own name is here: gloo tells it, looked up, to the workers of other nodes."""
    name, host = "host name", host_name()
    if _is_loopback(address):
        return ok(name, host)
    interface = interface_of(address)
    device = f"GLOO_SOCKET_IFNAME={interface or 'INTERFACE'}"
    began = time.monotonic()
    try:
        numbers = look_up(host)
    except OSError as exc:
        seen, numbers = f"{host} cannot be looked up: {_why(exc)}", []
    else:
        seen = f"{host} is {' and '.join(numbers)} here"
    if chosen := environ.get("GLOO_SOCKET_IFNAME"):
        return ok(name, f"{seen}; gloo takes GLOO_SOCKET_IFNAME={chosen}")
    if not numbers or any(map(_is_loopback, numbers)):
        wrong_way = f"{seen}, and workers over gloo tell other nodes to find them there; Elastic and NCCL do not"
        return warning(name, wrong_way, f"Export {device}, or name {host} as {address} in /etc/hosts.")
    if (taken := time.monotonic() - began) > SLOW:
        return warning(name, f"{seen}, which took {taken:.1f} s to look up", "Mend this host's resolver.")
    return ok(name, seen)


def check_resolver(address: str) -> Finding:
    """Time the lookup of an address without a name: torch's TCPStore looks up its peer's at every connection."""
    name = "resolver"
    began = time.monotonic()
    try:
        bounded(lambda: socket.getnameinfo((address, 0), socket.NI_NUMERICSERV))
    except OSError as exc:
        if not isinstance(exc, TimeoutError):
            return ok(name, f"the address {address} has no name, and that is said at once")
    if (taken := time.monotonic() - began) > SLOW:
        return warning(
            name,
            f"what name {address} has is not answered within {taken:.1f} s, and torch's TCPStore asks that",
            f"Name {address} in /etc/hosts, or let the name server answer for its network.",
        )
    return ok(name, f"the name of {address} is answered in {1000 * taken:.0f} ms")


def check_shared_memory(path: str = "/dev/shm") -> Finding:
    """Check that there is room for the batches that DataLoader's workers pass on."""
    name = "shared memory"
    try:
        status = os.statvfs(path)
    except OSError as exc:
        return warning(name, f"{path}: {exc.strerror}", "DataLoader's workers need it: mount a tmpfs there.")
    size, free = (count * status.f_frsize for count in (status.f_blocks, status.f_bavail))
    seen = f"{path} has {_bytes(size)}, {_bytes(free)} of it free"
    if free < LEAST_SHM:
        advice = "DataLoader's workers pass batches there: start the container with --shm-size=8g, or delete old files."
        return warning(name, seen, advice)
    return ok(name, seen)


def check_open_files(limits: Callable[[int], tuple[int, int]] = resource.getrlimit) -> Finding:
    """Check how many files a process may have open."""
    soft, hard = limits(resource.RLIMIT_NOFILE)
    seen = f"at most {_count(soft)} a process (ulimit -n), {_count(hard)} if asked for"
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        return warning("open files", seen, f"Raise it where the agent is started: ulimit -n {LEAST_FILES} or more.")
    return ok("open files", seen)


def check_versions(source: str) -> Finding:
    """Return what is installed; all nodes of a job must have the same Python and torch."""
    told = [f"elastic-core {__version__}", *([source] if source and not source.startswith("elastic-core ") else [])]
    versions = Versions(**installed_versions())
    return ok("versions", f"{versions}, {', '.join(told)}; kernel {platform.release()}")


def bounded(ask: Callable[[], _T]) -> _T:
    """Return what ``ask`` returns or raises, within :data:`~elastic_doctor.store.PATIENCE`."""
    return threads.bounded(ask, PATIENCE)


def look_up(host: str) -> list[str]:
    """Return a host's numeric addresses, the resolver's favourite first; raise OSError if none comes in time."""
    try:
        found = bounded(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except UnicodeError as exc:
        raise OSError(f"it cannot be the name of a host ({exc})") from exc
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an IPv4 address; None if none has it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # this one has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _loopback(shown: str, host: str | None, local_addr: str | None) -> Finding:
    """Return the finding that every other host would look for this host on itself."""
    name = "address"
    if local_addr:
        seen = f"other nodes are told {_MASTER_ADDR}={shown}, loopback, and would look for this one on themselves"
        return wrong(name, seen, f"{_another(local_addr)}.")
    if host is None or says_loopback(host):
        advice = "For several hosts, name the endpoint so that all of them reach it."
        if host is None:
            advice = "Connect it to a network, or give the address that others reach it at: --local_addr=ADDRESS."
        return warning(name, f"{shown}: only agents on this host can meet this one", advice)
    seen = f"other nodes are told {_MASTER_ADDR}={shown}, loopback: no network is reachable from here"
    return wrong(name, seen, f"Connect this host to a network. {_another(local_addr)}.")


def _another(local_addr: str | None) -> str:
    """Return the advice to give another address."""
    better = LOOPBACK
    if local_addr:
        with contextlib.suppress(RendezvousConnectionError, OSError):
            better = bounded(lambda: advertised_address("", "", None, single_node=False))
    if _is_loopback(better):
        return "Give the address that others reach this host at: --local_addr=ADDRESS"
    return f"Give the address that others reach this host at, perhaps --local_addr={better}, or leave it out"


def _unreachable(address: str) -> str | None:
    """Listen as an agent does, and connect to ``address``; why that does not lead here, or None if it does."""
    held = HeldPort.take(address)
    try:
        held.listen()
        with socket.socket(fileno=os.dup(held.fileno())) as listener:
            listener.settimeout(PATIENCE)
            try:
                with bounded(lambda: socket.create_connection((address, held.port), PATIENCE)) as line:
                    arrived, peer = listener.accept()
                    arrived.close()
                    return None if peer[1] == line.getsockname()[1] else "another server answers there"
            except TimeoutError:
                return f"no answer within {PATIENCE:g} s"
            except OSError as exc:
                return f"{exc.strerror or exc}"
    finally:
        held.close()


def _is_loopback(address: str) -> bool:
    literal = ip_address(address)
    return literal is not None and literal.is_loopback


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc)


def _count(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}"
