"""Azure: Scheduled Events, of which Preempt, Terminate, Reboot and Redeploy take the machine away; Freeze pauses it.

All machines of a scale set or an availability set get the events of each, so the machine's own name is asked for first.
Events are not approved: Azure waits until ``NotBefore``, and the node uses that time.

The first request for events enables them for the machine, and then a restart by its owner waits for ``NotBefore`` too.
So only a spot machine is asked where the user has not named Azure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from elastic_notices.metadata import TIMEOUT_SECONDS, Answer, Notice, NotUnderstoodError, ask, json_object, text_of

ENDPOINT_VARIABLE = "ELASTIC_NOTICES_AZURE_ENDPOINT"
ENDPOINT = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
PRIORITY = "/metadata/instance/compute/priority?api-version=2021-02-01&format=text"
SPOT = ("Spot", "Low")  # Low is the older name, of scale sets
HEADERS = {"Metadata": "true"}
FIRST_SECONDS = 130.0  # the first request of a machine enables the service, which may take two minutes
ENDING = {"Preempt": "preempts", "Terminate": "deletes", "Reboot": "reboots", "Redeploy": "redeploys"}


def parse_events(text: str, machine: str, now: float) -> Sequence[Notice]:
    """Return the notices for ``machine`` of a Scheduled Events document.

    Args:
        text: The answer: ``{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt", "Resources": ["vm0"],
            "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", ...}]}``.
        machine: The machine's name, as in ``Resources``.
        now: Seconds since the epoch.

    Raises:
        NotUnderstoodError: It is no such document.
    """
    events = json_object(text).get("Events")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise NotUnderstoodError(f"no scheduled events: {text[:80]!r}")
    found = []
    for event in events:
        kind, resources, not_before = event.get("EventType"), event.get("Resources"), event.get("NotBefore") or ""
        if not isinstance(resources, list) or machine not in resources or not isinstance(not_before, str):
            continue
        at = f" at {not_before}" if not_before else ""
        if kind in ENDING:
            started = event.get("EventStatus") == "Started" or not not_before
            seconds = 0.0 if started else max(0.0, _epoch(not_before) - now)
            found.append(Notice(f"Azure {ENDING[kind]} this machine{at}", seconds))
        elif kind == "Freeze":
            found.append(Notice(f"Azure pauses this machine for some seconds{at}"))
    return found


def _epoch(text: str) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        raise NotUnderstoodError(f"no date: {text[:40]!r}") from None


@dataclass
class ScheduledEvents:
    """The events of one machine."""

    name = "the metadata service of Azure"
    advice = "If pods cannot reach 169.254.169.254, give the pod hostNetwork: true."
    now: Callable[[], float]  # seconds since the epoch
    endpoint: str = ENDPOINT
    spot_only: bool = False  # whether a machine that is no spot machine is asked for nothing else
    send: Callable[..., Answer] = ask
    _machine: str = ""
    _answered: bool = False  # whether the service has ever told the events

    def look(self) -> Sequence[Notice] | None:
        """Ask for the events, and first for the machine's name; None if it is no spot machine, and only those count."""
        if self.spot_only:
            if self._get(PRIORITY).strip() not in SPOT:
                return None
            self.spot_only = False
        if not self._machine:
            self._machine = self._get(NAME).strip()
            if not self._machine:
                raise NotUnderstoodError("an empty name of the machine")
        text = self._get(EVENTS, timeout=TIMEOUT_SECONDS if self._answered else FIRST_SECONDS)
        self._answered = True
        return parse_events(text, self._machine, self.now())

    def _get(self, path: str, **given: float) -> str:
        url = self.endpoint.rstrip("/") + path
        return text_of(self.send(url, HEADERS, **given), url)
