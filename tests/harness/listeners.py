"""The addresses at which processes listen, from proc(5), as `ss -ltnp` shows them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

_LISTENING = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def listening_addresses(pids: Iterable[int]) -> dict[int, set[str]]:
    """Return the addresses on which each process listens by TCP, without processes that do not listen."""
    return {pid: found for pid in pids if (found := _of(pid))}


def _of(pid: int) -> set[str]:
    inodes, found = set(), set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (match := _SOCKET.fullmatch(os.readlink(descriptor))) is not None:
                    inodes.add(match[1])
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in inodes:
                    found.add(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    """Return an address from the kernel's form: words of four bytes, each in this machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
