"""Google Compute Engine: whether the machine is preempted (30 s ahead), and host maintenance that terminates it.

Both keys are asked with ``wait_for_change``: the service answers when the value changes, or after ``WAIT_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastic_notices.http import TIMEOUT_SECONDS, Answer, ask, refused
from elastic_notices.notice import Notice, NotUnderstoodError

HOST_VARIABLE = "GCE_METADATA_HOST"  # HOST[:PORT], as for Google's own libraries
HOST = "metadata.google.internal"
HEADERS = {"Metadata-Flavor": "Google"}
PREEMPTED, MAINTENANCE = "preempted", "maintenance-event"
WAIT_SECONDS = 60
PREEMPTED_SECONDS = 30.0  # what a preempted machine gets
MAINTENANCE_SECONDS = 60.0  # the least that a machine gets before maintenance that terminates it


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


PARSERS = {PREEMPTED: parse_preempted, MAINTENANCE: parse_maintenance}


class MetadataKey:
    """One key of the machine."""

    advice = "If pods cannot reach metadata.google.internal, give the pod hostNetwork: true."

    def __init__(self, key: str, host: str = HOST, send: Callable[..., Answer] = ask) -> None:
        self.name = f"the metadata service of GCP ({key})"
        self._key, self._send = key, send
        self._url = f"http://{host}/computeMetadata/v1/instance/{key}"
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
            raise refused(answer, self._url)
        found = PARSERS[self._key](answer.text)
        etag = next((value for name, value in answer.headers.items() if name.lower() == "etag"), "")
        self._etag = etag if etag.isalnum() else ""
        return found
