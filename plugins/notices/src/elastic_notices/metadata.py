"""A metadata service of a cloud: its notices about this machine, and requests to it.

Requests are plain HTTP, without a proxy or a redirect, and with a time limit and a size limit.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that the cloud has announced."""

    what: str  # a clause for users: "AWS terminates this spot instance at 2026-11-25T01:02:03Z"
    seconds: float | None = None  # until the machine is taken away; None if it is not known to be, which is a hint only


class NotUnderstoodError(Exception):
    """An answer that is none of the service's: its message says what it was."""


class Source(Protocol):
    """One thing to ask a metadata service for."""

    name: str  # the name of the service in messages
    advice: str  # the advice to a user where the service does not answer: a sentence, or ''

    def look(self) -> Sequence[Notice] | None:
        """Ask once, and return what is announced now; None if the machine is none that gets notices.

        Raises:
            OSError: The service cannot be reached, or answers with an error.
            NotUnderstoodError: The answer is none of the service's.
        """


MAX_BYTES = 65_536  # of an answer; the largest that is expected, Azure's events, has some hundred
TIMEOUT_SECONDS = 2.0  # a metadata service is on the same host


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in an answer; raise NotUnderstoodError if it is none."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise NotUnderstoodError(f"no JSON object: {text[:80]!r}")
    return plain


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none: a metadata service sends none, and another host is none."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)  # link-local: never by a proxy


def ask(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout: float = TIMEOUT_SECONDS) -> Answer:
    """Send one request, and return the answer, also one of an error such as 404.

    Raises:
        OSError: No answer came in time.
        NotUnderstoodError: What came is no HTTP, no text, or too long.
    """
    if not url.startswith(("http://", "https://")):
        raise NotUnderstoodError(f"{url!r} is no HTTP address")
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        try:
            answer = _OPENER.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            body = answer.read(MAX_BYTES + 1)
            status, found = int(answer.status or 0), dict(answer.headers.items())
    except http.client.HTTPException as exc:
        raise NotUnderstoodError(f"no HTTP: {type(exc).__name__}") from exc
    if len(body) > MAX_BYTES:
        raise NotUnderstoodError(f"an answer of more than {MAX_BYTES} bytes")
    try:
        return Answer(status, body.decode(), found)
    except UnicodeDecodeError as exc:
        raise NotUnderstoodError("an answer that is no text") from exc


def text_of(answer: Answer, url: str) -> str:
    """Return the text of an answer with status 200; raise OSError for any other."""
    if answer.status != 200:
        raise OSError(f"{url} answers with status {answer.status}")
    return answer.text
