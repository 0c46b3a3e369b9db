"""Amazon EC2: the interruption notice of a spot instance, two minutes ahead, and the rebalance recommendation, a hint.

Both keys answer with 404 until there is something to say, and each is watched by itself. Requests carry a session token
(IMDSv2); a service without tokens, of an old image or a fake, is asked without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from elastic_notices.metadata import Answer, Notice, NotUnderstoodError, ask, json_object, text_of

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # as for Amazon's own SDKs
DISABLED_VARIABLE = "AWS_EC2_METADATA_DISABLED"
ENDPOINT = "http://169.254.169.254"
TOKEN = "/latest/api/token"
METADATA = "/latest/meta-data/"
ACTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
LIFE_CYCLE = "instance-life-cycle"  # spot, on-demand and others; both keys are of spot instances only
TOKEN_SECONDS = 21_600  # the longest life of a token that the service gives


def parse_action(text: str, now: float) -> Notice:
    """Return the notice of ``spot/instance-action``: ``{"action": "terminate", "time": "2017-09-18T08:22:00Z"}``.

    Raises:
        NotUnderstoodError: It is no such object.
    """
    plain = json_object(text)
    action, time = plain.get("action"), plain.get("time")
    if action not in ("terminate", "stop", "hibernate") or not isinstance(time, str):
        raise NotUnderstoodError(f"no instance action: {text[:80]!r}")
    seconds = 0.0 if action == "hibernate" else max(0.0, _epoch(time) - now)  # hibernation begins at once
    return Notice(f"AWS {action}s this spot instance at {time}", seconds)


def parse_rebalance(text: str, _: float = 0.0) -> Notice:
    """Return the hint of ``events/recommendations/rebalance``: ``{"noticeTime": "2020-10-27T08:22:00Z"}``.

    Raises:
        NotUnderstoodError: It is no such object.
    """
    time = json_object(text).get("noticeTime")
    if not isinstance(time, str):
        raise NotUnderstoodError(f"no rebalance recommendation: {text[:80]!r}")
    _epoch(time)
    return Notice(f"AWS says since {time} that this spot instance is at a higher risk of interruption")


def _epoch(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise NotUnderstoodError(f"no time in UTC: {text[:40]!r}") from None


PARSERS: Mapping[str, Callable[[str, float], Notice]] = {ACTION: parse_action, REBALANCE: parse_rebalance}


class SpotKey:
    """One key of the instance. A key that fails says nothing of the other, and does not hold it up."""

    advice = (
        "In a container, the answer with the session token takes two hops: set HttpPutResponseHopLimit of the instance "
        "to 2 (aws ec2 modify-instance-metadata-options), or give the pod hostNetwork: true."
    )

    def __init__(
        self,
        key: str,
        now: Callable[[], float],
        endpoint: str = ENDPOINT,
        *,
        spot_only: bool = False,
        send: Callable[..., Answer] = ask,
    ) -> None:
        self.name = f"the metadata service of AWS ({key})"
        self._key, self._now, self._endpoint, self._send = key, now, endpoint.rstrip("/"), send
        self._token: str | None = None
        self._spot_only = spot_only

    def look(self) -> Sequence[Notice] | None:
        """Ask for the key; None if the instance is not a spot instance, and only those are asked for."""
        if self._spot_only:
            if (self._get(METADATA + LIFE_CYCLE) or "spot").strip() != "spot":  # an old service does not say
                return None
            self._spot_only = False
        text = self._get(METADATA + self._key)
        return [] if text is None else [PARSERS[self._key](text, self._now())]

    def _get(self, path: str) -> str | None:
        url = self._endpoint + path
        answer = self._send(url, self._headers())
        if answer.status == 401:  # the token is not valid any more
            self._token = None
            answer = self._send(url, self._headers())
        return None if answer.status == 404 else text_of(answer, url)

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            answer = self._send(self._endpoint + TOKEN, wanted, method="PUT")
            self._token = answer.text if answer.status == 200 and answer.text.isprintable() else ""
        return {"X-aws-ec2-metadata-token": self._token} if self._token else {}
