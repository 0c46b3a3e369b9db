"""Memory files of a name, whoever has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def memory_files(mark: str) -> Iterator[tuple[int, str]]:
    """Who holds or maps memory of a name, of all processes of this host, and which."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = {os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")}
            maps = Path(f"/proc/{entry}/maps").read_text()
        except OSError:
            continue
        for name in {link.split(" ")[0] for link in links if f"memfd:{mark}" in link}:
            yield int(entry), name
        if f"memfd:{mark}" in maps:
            yield int(entry), "mapped"
