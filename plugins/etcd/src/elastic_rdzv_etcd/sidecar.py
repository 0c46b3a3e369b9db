"""An etcd of this agent's own, for ``--standalone``: in a temporary folder, on a free port of the loopback interface.

It ends with the agent, however that ends, and its folder with it: ``sidecar_main`` is the process that sees to it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from elastic_core.config import inheritable
from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_rdzv_etcd import sidecar_main

BINARY_VARIABLES = ("ELASTIC_ETCD_BINARY", "TORCHELASTIC_ETCD_BINARY_PATH")
"""The variables that name the binary; the second is torch's."""
START_TIMEOUT = 60.0  # seconds until a sidecar that has said nothing counts as hanging
END_TIMEOUT = 5.0  # seconds that it gets to clean up


def find_binary(config: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """Return the etcd to start: ``etcd_binary`` of ``--rdzv_conf``, else the environment's, else the one on ``PATH``.

    Raises:
        UsageError: There is none, or it cannot be run.
    """
    named = {"--rdzv_conf etcd_binary": config.get("etcd_binary")}
    named.update((variable, environ.get(variable)) for variable in BINARY_VARIABLES)
    for source, path in named.items():
        if path:
            if (found := shutil.which(path)) is None:
                raise UsageError(f"{source}={path!r} is no program that can be run.")
            return os.path.abspath(found)
    if (found := shutil.which("etcd")) is None:
        raise UsageError(
            "--standalone --rdzv_backend=etcd starts an etcd of its own, and there is none on PATH.",
            hint="Install it (Debian: apt-get install etcd-server), or say --rdzv_conf etcd_binary=PATH.",
        )
    return os.path.abspath(found)


class Sidecar:
    """A running etcd, for as long as this object's process lives or until :meth:`close`."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: socket.socket, port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder
        self._lifeline: socket.socket | None = lifeline

    @classmethod
    def start(cls, binary: str) -> Sidecar:
        """Start it, and wait until it serves; raise RendezvousConnectionError if it does not."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-I", "-S", sidecar_main.__file__, str(theirs.fileno()), binary]
            process = subprocess.Popen(
                command,
                env=inheritable(os.environ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.settimeout(START_TIMEOUT)
        try:
            said = ours.makefile("r", errors="replace").readline()
        except TimeoutError:
            said = f"failed it said nothing for {START_TIMEOUT:g} s"
        word, _, rest = said.strip().partition(" ")
        if word != "ready":
            ours.close()
            process.wait()
            raise RendezvousConnectionError(
                f"The etcd of this agent's own, {binary!r}, did not start: {rest or 'its sidecar ended'}.",
                hint="Run it by hand to see what it lacks; --rdzv_conf etcd_binary=PATH names another one.",
                lasting=True,
            )
        port, _, folder = rest.partition(" ")
        return cls(process, ours, int(port), Path(folder))

    def close(self) -> None:
        """End it. Called twice, the second call does nothing."""
        if self._lifeline is None:
            return
        self._lifeline.close()
        self._lifeline = None
        try:
            self.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)  # its own work, unless it was killed
