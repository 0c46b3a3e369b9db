"""The job token: a secret that all nodes of a job share, which proves that a value in the store is by one of them.

It comes from the environment (``ELASTIC_JOB_TOKEN``) or from a file (``token_file=`` in ``--rdzv_conf``), never from a
command line, which every user of a host can read. ``docs/security.md`` says what it protects from.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from elastic_core.errors import UsageError

TOKEN_VARIABLE = "ELASTIC_JOB_TOKEN"
TOKEN_MIN_BYTES = 32
TOKEN_MIN_DISTINCT_BYTES = 8
"""Lower limit. The sealed values can be read, so a token that can be guessed can be found offline."""
TOKEN_MAX_BYTES = 4096

_MAKE_ONE = "Make one with `openssl rand -hex 32`."


class JobToken:
    """A job token, which was read at ``source``. Its text is never shown.

    Raises:
        UsageError: It is too short, too long, or too regular.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes, source: str) -> None:
        if not TOKEN_MIN_BYTES <= len(secret) <= TOKEN_MAX_BYTES:
            raise UsageError(
                f"The job token of {source} has {len(secret)} bytes; "
                f"{TOKEN_MIN_BYTES} to {TOKEN_MAX_BYTES} are allowed.",
                hint=_MAKE_ONE,
            )
        if len(set(secret)) < TOKEN_MIN_DISTINCT_BYTES:
            raise UsageError(
                f"The job token of {source} has only {len(set(secret))} different characters, and could be guessed.",
                hint=_MAKE_ONE,
            )
        self._secret = secret

    def __repr__(self) -> str:
        return "JobToken(***)"

    def __deepcopy__(self, memo: object) -> JobToken:
        return self  # it is immutable

    def __reduce__(self) -> str:
        raise TypeError("a job token does not leave its process")

    def key(self, job_id: str) -> bytes:
        """Return the key of one job, derived as in HKDF (RFC 5869): the key of another job does not follow from it."""
        extracted = hmac_sha256(b"elastic job token", self._secret)
        return hmac_sha256(extracted, b"job " + job_id.encode(errors="surrogateescape") + b"\x01")


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of a message."""
    import hmac  # takes 4 ms, which a launch without a token need not spend

    return hmac.digest(key, message, "sha256")


def read_token(environ: Mapping[str, str], token_file: str | None) -> JobToken | None:
    """Return the token of the environment, or of the ``token_file=`` of ``--rdzv_conf``; None if neither has one.

    Raises:
        UsageError: Both have one, it can be guessed, or the file can be read or written by others.
    """
    text = environ.get(TOKEN_VARIABLE)
    if token_file is None:
        return None if text is None else JobToken(text.encode(errors="surrogateescape").strip(), TOKEN_VARIABLE)
    if text is not None:
        raise UsageError(
            f"The job has two tokens: in {TOKEN_VARIABLE} and in token_file={token_file}.", hint="Give one."
        )
    return JobToken(_read_private_file(token_file).strip(), token_file)


def _read_private_file(path: str) -> bytes:
    """Return the content of a file that other users can neither read nor write.

    Its group may read it, because Kubernetes gives a secret to a container that does not run as root in that way.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"token_file={path} is not a regular file.")
            if status.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    f"token_file={path} belongs to user {status.st_uid}, who could change it.",
                    hint="It must belong to the user of the agent, or to root.",
                )
            if mode & 0o027:
                raise UsageError(
                    f"token_file={path} has mode {mode:04o}: others can read it, or its group can write it.",
                    hint=f"Run `chmod 600 {path}`. For a secret of Kubernetes set defaultMode: 0440.",
                )
            return file.read(TOKEN_MAX_BYTES + 2)  # with a line end; of a longer file enough to see that it is too long
    except OSError as exc:
        raise UsageError(f"token_file={path} cannot be read: {exc.strerror}.") from exc
