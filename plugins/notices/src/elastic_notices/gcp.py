"""Google Compute Engine: whether the machine is preempted (30 s ahead), and host maintenance that terminates it.

Both keys are asked with ``wait_for_change``: the service answers when the value changes, or after ``WAIT_SECONDS``.
The maintenance of a machine with GPUs is announced up to an hour ahead. Where ``instance/upcoming-maintenance`` has the
time at which it begins, the node leaves in the last minutes before that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from elastic_notices.metadata import TIMEOUT_SECONDS, Answer, Notice, NotUnderstoodError, ask, text_of

HOST_VARIABLE = "GCE_METADATA_HOST"  # HOST[:PORT], as for Google's own libraries
HOST = "metadata.google.internal"
HEADERS = {"Metadata-Flavor": "Google"}
PREEMPTED, MAINTENANCE, UPCOMING = "preempted", "maintenance-event", "upcoming-maintenance"
WAIT_SECONDS = 60
PREEMPTED_SECONDS = 30.0  # what a preempted machine gets
MAINTENANCE_SECONDS = 60.0  # the least that a machine gets before maintenance that terminates it
EARLIEST_SECONDS = 3700.0  # before a maintenance, the event is announced: an hour, and a little for clocks that differ
LAST_SECONDS = 180.0  # before a maintenance whose beginning is known, in which the node leaves
WINDOW_START = re.compile(r'"(?:window_?)?start_?time"\s*:\s*"([^"]+)"', re.IGNORECASE)  # all spellings in use


def parse_preempted(text: str) -> Sequence[Notice]:
    """Return the notice of ``instance/preempted``, which is TRUE or FALSE."""
    match text.strip():
        case "TRUE":
            return [Notice("GCP preempts this machine", PREEMPTED_SECONDS)]
        case "FALSE":
            return []
    raise NotUnderstoodError(f"neither TRUE nor FALSE: {text[:80]!r}")


def parse_maintenance(text: str) -> Sequence[Notice]:
    """Return the notice of ``instance/maintenance-event``; a live migration pauses the machine, and is a hint only."""
    match text.strip():
        case "TERMINATE_ON_HOST_MAINTENANCE":
            return [Notice("GCP terminates this machine for maintenance of its host", MAINTENANCE_SECONDS)]
        case "MIGRATE_ON_HOST_MAINTENANCE":
            return [Notice("GCP moves this machine to another host, which pauses it")]
        case "NONE":
            return []
    raise NotUnderstoodError(f"no maintenance event: {text[:80]!r}")


def at_window_start(notice: Notice, upcoming: str, now: float) -> Notice:
    """Return the notice of a maintenance with the time that is left; until the last minutes it is a hint.

    ``upcoming`` is the value of ``instance/upcoming-maintenance``, which may say when that begins; ``now`` is in
    seconds since 1970.
    """
    found = WINDOW_START.search(upcoming)
    try:
        start = datetime.fromisoformat(found[1].replace("Z", "+00:00")) if found else None
    except ValueError:
        start = None
    if found is None or start is None or start.tzinfo is None:
        return notice
    left = start.timestamp() - now
    if not MAINTENANCE_SECONDS < left <= EARLIEST_SECONDS:
        return notice  # it has begun, or this is the window of a later one
    return Notice(f"{notice.what} at {found[1]}", None if left > LAST_SECONDS else left)


PARSERS = {PREEMPTED: parse_preempted, MAINTENANCE: parse_maintenance}


class MetadataKey:
    """One key of the machine."""

    advice = "If pods cannot reach metadata.google.internal, give the pod hostNetwork: true."

    def __init__(
        self, key: str, host: str = HOST, send: Callable[..., Answer] = ask, now: Callable[[], float] = time.time
    ) -> None:
        self.name = f"the metadata service of GCP ({key})"
        self._key, self._send, self._now = key, send, now
        instance = f"http://{host}/computeMetadata/v1/instance"
        self._url, self._upcoming_url = f"{instance}/{key}", f"{instance}/{UPCOMING}?alt=json"
        self._etag = ""

    def look(self) -> Sequence[Notice]:
        """Ask for the value; after the first answer, wait until it changes."""
        url, timeout = self._url, TIMEOUT_SECONDS
        if self._etag:
            url += f"?wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={self._etag}"
            timeout += WAIT_SECONDS
        answer = self._send(url, HEADERS, timeout=timeout)
        if answer.status != 200:
            self._etag = ""
        found = PARSERS[self._key](text_of(answer, self._url))
        if self._key == MAINTENANCE and any(notice.seconds is not None for notice in found):
            found = [at_window_start(notice, self._upcoming(), self._now()) for notice in found]
        etag = next((value for name, value in answer.headers.items() if name.lower() == "etag"), "")
        self._etag = etag if etag.isalnum() else ""
        return found

    def _upcoming(self) -> str:
        try:
            answer = self._send(self._upcoming_url, HEADERS, timeout=TIMEOUT_SECONDS)
        except (OSError, NotUnderstoodError):
            return ""
        return answer.text if answer.status == 200 else ""
