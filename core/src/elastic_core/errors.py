"""Errors for people: what was wrong, with the value, and what to do.

Every error that can reach a user derives from :class:`ElasticError`. The classes own their wording; callers pass facts.
The CLI renders them in one place (``cli/errors.py``) and exits with :attr:`ElasticError.exit_code`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar

from elastic_core.exit_codes import ExitCode


class ElasticError(Exception):
    """The base of all our errors.

    Args:
        message: One sentence that says what was wrong, quoting the value.
        hint: One sentence that says what to do, or None where the message already does.

    Neither shows a password, whatever the caller quotes (:func:`without_passwords`).
    """

    exit_code: ClassVar[int] = ExitCode.JOB_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = without_passwords(message)
        self.hint = None if hint is None else without_passwords(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(ElasticError, ValueError):
    """A value that the user gave is wrong; raised before anything is started. As torch's errors of that kind are, it is
    a ValueError.
    """

    exit_code = ExitCode.USAGE


class PluginError(ElasticError):
    """A plugin that the run names cannot be used: not installed, fails to import, or built for other hook specs."""

    exit_code = ExitCode.USAGE


class ResourceError(ElasticError):
    """This machine has not enough of something: processes, open files, memory."""

    exit_code = ExitCode.WITHDRAWN


class RendezvousError(ElasticError):
    """The base of everything that a rendezvous raises, and what its handler fails with."""

    exit_code = ExitCode.UNREACHABLE


class RendezvousClosedError(RendezvousError):
    """The job is closed: the rendezvous admits nobody any more. (A timeout, by contrast, may be tried again.)"""

    exit_code = ExitCode.REFUSED


class RendezvousTimeoutError(RendezvousError):
    """Fewer than the minimum of nodes came within the join timeout; names who came and who is missing."""

    exit_code = ExitCode.TOO_FEW_NODES


class RendezvousConnectionError(RendezvousError):
    """The store did not answer, or refused us. Retried by the drivers; final only while joining.

    Backends raise it (``from exc``) for every failure of transport or authentication, and nothing else for those.

    Args:
        message: As for every error.
        hint: As for every error.
        lasting: Whether waiting mends nothing, such as a wrong password, a certificate that is not to be trusted, or a
            name that nobody knows. The agent tries its first connection again for up to a minute unless this is true.
    """

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, *, hint: str | None = None, lasting: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.lasting = lasting


class RendezvousStateError(RendezvousError):
    """The store answered with something that cannot be: malformed, oversized, of another version, a broken chain."""

    exit_code = ExitCode.REFUSED


class RendezvousRefusedError(RendezvousError):
    """The running job does not take this node: other settings, other versions, or another run under the same id."""

    exit_code = ExitCode.REFUSED


class StoreLostError(RendezvousConnectionError):
    """An embedded store is gone for good: nobody listens there any more. (No answer may come from the network, too.)"""

    exit_code = ExitCode.STORE_LOST


_WHOLE_URL = re.compile(r"""(\A\w+://).*@|(['"]\w+://)[^'"]*@""", re.DOTALL)
"""One that is seen to end, with quotes or with the text, may have blanks before the ``@``."""
_IN_URL = re.compile(r"(?<=://)\S*@")
_WITHOUT_SCHEME = re.compile(r"""(?<![^\s'"(=,])[^\s'"(=,:/@]*:(?!//)\S*@""")
"""``user:password@`` of an endpoint without a scheme."""
_QUOTED_WITHOUT_SCHEME = re.compile(r"""(['"])[^\s'":/@]*:(?!//)[^'"]*@""")
_IN_PAIR = re.compile(r"""(?i)\b(\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=)[^,\s]+?(['":.]*(?:[,\s]|$))""")


def without_passwords(text: str) -> str:
    """A text with ``***`` for what a URL, or ``user:password@host``, has before ``@``, and for the value of
    ``password=`` and the like.
    """
    text = _IN_URL.sub("***@", _WHOLE_URL.sub(lambda found: f"{found[1] or found[2]}***@", text))
    text = _WITHOUT_SCHEME.sub("***@", _QUOTED_WITHOUT_SCHEME.sub(r"\1***@", text))
    return _IN_PAIR.sub(r"\1***\2", text)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the known word nearest to ``wrong``, with its leading space, or ''."""
    nearest = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def in_one_line(exc: BaseException) -> str:
    """What was raised, for a message about whoever raised it: ours in its own words, any other with its class."""
    return str(exc).replace("\n", " ") if isinstance(exc, ElasticError) else f"{type(exc).__name__}: {exc}."
