"""The errors that can reach a user: what was wrong, with the value, and what to do.

``cli/commands.py`` prints them and exits with :attr:`ElasticError.exit_code`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar

from elastic_core.exit_codes import ExitCode


class ElasticError(Exception):
    """The base of all errors of Elastic.

    ``message`` names the mistake in one sentence and quotes the value. ``hint`` names the remedy in one sentence; None
    if the message has it. Neither shows a password, whatever the caller quotes (:func:`without_passwords`).
    """

    exit_code: ClassVar[int] = ExitCode.JOB_FAILED

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        self.message = without_passwords(message) or type(self).__name__
        self.hint = None if hint is None else without_passwords(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(ElasticError, ValueError):
    """A value that the user gave is wrong; raised before anything is started. It is a ValueError, as in torch."""

    exit_code = ExitCode.USAGE


class PluginError(ElasticError):
    """A plugin that the run names cannot be used: not installed, fails to import, or built for other hook specs."""

    exit_code = ExitCode.USAGE


class ResourceError(ElasticError):
    """The machine has run out of processes, open files, memory, or room for temporary files."""

    exit_code = ExitCode.WITHDRAWN


class UnhealthyNodeError(ElasticError):
    """A check at the gate keeps this node out of its job; tells which, and why."""

    exit_code = ExitCode.UNHEALTHY


class RendezvousError(ElasticError):
    """The base of all errors of a rendezvous and of rendezvous handlers."""

    exit_code = ExitCode.UNREACHABLE


class RendezvousClosedError(RendezvousError):
    """The job is closed: the rendezvous admits no more nodes. After a timeout, by contrast, one may try again."""

    exit_code = ExitCode.REFUSED


class RendezvousTimeoutError(RendezvousError):
    """Fewer than the minimum of nodes came within the join timeout; names those that came and how many are missing."""

    exit_code = ExitCode.TOO_FEW_NODES


class RendezvousConnectionError(RendezvousError):
    """The store did not answer, or refused the connection. The session retries; it is final only while joining.

    Backends raise it (``from exc``) for every failure of transport or authentication, and nothing else for those. It is
    ``lasting`` if waiting cannot help: a wrong password, an untrusted certificate, or an unknown host name. Otherwise
    the agent retries its first connection for up to a minute.
    """

    def __init__(self, message: str = "", *, hint: str | None = None, lasting: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.lasting = lasting


class RendezvousStateError(RendezvousError):
    """The store answered with invalid data: malformed, oversized, of another version, or a broken chain of entries."""

    exit_code = ExitCode.REFUSED


class RendezvousRefusedError(RendezvousError):
    """The running job refuses this node: other settings, other versions, or another run under the same id."""

    exit_code = ExitCode.REFUSED


class StoreLostError(RendezvousConnectionError):
    """An embedded store is gone for good: its port is closed. A missing answer alone may be the network's fault."""

    exit_code = ExitCode.STORE_LOST


_WHOLE_URL = re.compile(r"""(\A\w+://).*@|(['"]\w+://)[^'"]*@""", re.DOTALL)
"""A URL whose end is known, by quotes or by the end of the text, may have blanks before the ``@``."""
_IN_URL = re.compile(r"(?<=://)\S*@")
_WITHOUT_SCHEME = re.compile(r"""(?<![^\s'"(=,])[^\s'"(=,:/@]*:(?!//)\S*@""")  # ``user:password@`` of an endpoint
_QUOTED_WITHOUT_SCHEME = re.compile(r"""(['"])[^\s'":/@]*:(?!//)[^'"]*@""")
_IN_PAIR = re.compile(r"""(?i)\b(\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=)[^,\s]+?(['":.]*(?:[,\s]|$))""")


def without_passwords(text: str) -> str:
    """Return a text with ``***`` in place of passwords.

    These are the part before ``@`` of a URL or of ``user:password@host``, and the value of ``password=`` and the like.
    """
    text = _IN_URL.sub("***@", _WHOLE_URL.sub(lambda found: f"{found[1] or found[2]}***@", text))
    text = _WITHOUT_SCHEME.sub("***@", _QUOTED_WITHOUT_SCHEME.sub(r"\1***@", text))
    return _IN_PAIR.sub(r"\1***\2", text)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?``, with its leading space, for the known word nearest to ``wrong``; or ''."""
    nearest = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def how_to_install(distribution: str) -> str:
    """Return how to install a distribution from where elastic-core came (PEP 610): its name on PyPI is not ours."""
    import json
    import shlex
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote

    from elastic_core.distributions import distributions

    try:
        core = metadata.distribution("elastic-core")
    except metadata.PackageNotFoundError:  # it is on PYTHONPATH alone
        return f"Install {distribution} from where elastic_core came."
    origin = json.loads(core.read_text("direct_url.json") or "{}")
    folder = unquote(origin.get("url", "")).removeprefix("file://").rpartition("/")[0]
    needed = [*distributions()[distribution].get("requires", ()), distribution]
    checkouts = [distributions()[name]["folder"] for name in needed]
    wheels = [f"{name.replace('-', '_')}-{core.version}-py3-none-any.whl" for name in needed]
    paths = [f"{folder}/{name}" for name in (checkouts if "dir_info" in origin else wheels)]
    if "vcs_info" in origin:
        source = f"git+{origin['url']}@{origin['vcs_info']['commit_id']}#subdirectory="
        paths = [source + checkout for checkout in checkouts]
    if all(Path(path).exists() or not path.startswith("/") for path in paths):
        return f"Install {distribution}:\n  pip install {shlex.join(paths)}"
    names = " and ".join(wheels)
    return f"Install {names} from where elastic-core came; the public index has no {distribution} of this project."


def in_one_line(exc: BaseException) -> str:
    """Return an exception as one line: the message of an ElasticError, the class and message of any other."""
    return str(exc).replace("\n", " ") if isinstance(exc, ElasticError) else f"{type(exc).__name__}: {exc}."
