"""Amazon EC2: the interruption notice of a spot instance, two minutes ahead, and the rebalance recommendation, a hint.

Both keys answer with 404 until there is something to say. Requests carry a session token (IMDSv2); a service without
tokens, of an old image or a fake, is asked without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from elastic_notices.http import Answer, ask, refused
from elastic_notices.notice import Notice, NotUnderstoodError

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # as for Amazon's own SDKs
DISABLED_VARIABLE = "AWS_EC2_METADATA_DISABLED"
ENDPOINT = "http://169.254.169.254"
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_SECONDS = 21_600  # the longest life of a token that the service gives


def parse_action(text: str, now: float) -> Notice:
    """Return the notice of ``spot/instance-action``: ``{"action": "terminate", "time": "2017-09-18T08:22:00Z"}``.

    Args:
        text: The answer.
        now: Seconds since the epoch.

    Raises:
        NotUnderstoodError: It is no such object.
    """
    plain = _object(text)
    action, time = plain.get("action"), plain.get("time")
    if action not in ("terminate", "stop", "hibernate") or not isinstance(time, str):
        raise NotUnderstoodError(f"no instance action: {text[:80]!r}")
    what = {"terminate": "terminates", "stop": "stops", "hibernate": "hibernates"}[action]
    seconds = 0.0 if action == "hibernate" else max(0.0, _epoch(time) - now)  # hibernation begins at once
    return Notice(f"AWS {what} this spot instance at {time}", seconds)


def parse_rebalance(text: str) -> Notice:
    """Return the hint of ``events/recommendations/rebalance``: ``{"noticeTime": "2020-10-27T08:22:00Z"}``.

    Raises:
        NotUnderstoodError: It is no such object.
    """
    time = _object(text).get("noticeTime")
    if not isinstance(time, str):
        raise NotUnderstoodError(f"no rebalance recommendation: {text[:80]!r}")
    _epoch(time)
    return Notice(f"AWS says since {time} that this spot instance is at a higher risk of interruption")


def _object(text: str) -> Mapping[str, object]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise NotUnderstoodError(f"no JSON object: {text[:80]!r}")
    return plain


def _epoch(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise NotUnderstoodError(f"no time in UTC: {text[:40]!r}") from None


class SpotInstance:
    """The notices of one instance."""

    name = "the metadata service of AWS"

    def __init__(self, now: Callable[[], float], endpoint: str = ENDPOINT, send: Callable[..., Answer] = ask) -> None:
        self._now, self._endpoint, self._send = now, endpoint.rstrip("/"), send
        self._token: str | None = None

    def look(self) -> Sequence[Notice]:
        """Ask for both keys."""
        found = []
        if (text := self._get(ACTION)) is not None:
            found.append(parse_action(text, self._now()))
        if (text := self._get(REBALANCE)) is not None:
            found.append(parse_rebalance(text))
        return found

    def _get(self, path: str) -> str | None:
        """Return the value of a key; None for a key that is not there."""
        url = self._endpoint + path
        answer = self._send(url, self._headers())
        if answer.status == 401:  # the token is not valid any more
            self._token = None
            answer = self._send(url, self._headers())
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise refused(answer, url)
        return answer.text

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            answer = self._send(self._endpoint + TOKEN, wanted, method="PUT")
            self._token = answer.text if answer.status == 200 and answer.text.isprintable() else ""
        return {"X-aws-ec2-metadata-token": self._token} if self._token else {}
