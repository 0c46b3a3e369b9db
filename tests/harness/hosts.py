"""Several hosts on one machine: network namespaces on a bridge, made by a test and removed with it. Needs root."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace."""

    name: str
    ipv4: str
    ipv6: str

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs the command in this namespace."""
        return ["ip", "netns", "exec", self.name, *argv]

    def cut_off(self) -> None:
        """Pull its cable: nothing arrives any more, and no error is sent."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def plug_in(self) -> None:
        """Plug it in again, for IPv4: the addresses of IPv6 went with the link."""
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "route", "add", "default", "via", self.ipv4)

    def shut_out(self, other: Host) -> None:
        """Drop whatever would go to another host: neither reaches the other any more, and that one is not told."""
        for address in (other.ipv4, other.ipv6):
            _ip("-n", self.name, "route", "add", "blackhole", address)

    def let_in(self, other: Host) -> None:
        """Send to it again."""
        for address in (other.ipv4, other.ipv6):
            _ip("-n", self.name, "route", "del", "blackhole", address)


@contextmanager
def hosts(count: int, *, default_route: bool = True) -> Iterator[list[Host]]:
    """So many hosts that reach only each other, over IPv4 and IPv6."""
    label = f"el{os.getpid() % 100000}n{next(_serial)}"
    switch = f"{label}s"
    names = [f"{label}h{number}" for number in range(1, count + 1)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        found = []
        for number, name in enumerate(names, start=1):
            host = Host(name, f"10.77.0.{number}", f"fd77::{number}")
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{host.ipv4}/24", "dev", "eth0")
            _ip("-n", name, "addr", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
            _ip("-n", name, "link", "set", "eth0", "up")
            if default_route:
                _ip("-n", name, "route", "add", "default", "via", f"10.77.0.{number}")
            found.append(host)
        yield found
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
