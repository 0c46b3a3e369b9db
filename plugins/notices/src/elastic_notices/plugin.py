"""The plugin: reads ``--notices``, and watches the metadata service of this machine's cloud while a run lasts.

A source is asked again and again, and what is new is said. Trouble is reported once, and never raised.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core import JoinedRun, hookimpl
from elastic_core.config import RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event, Level
from elastic_notices.flags import NOTICES

if TYPE_CHECKING:
    from elastic_notices.metadata import Notice, Source

INTERVAL_VARIABLE = "ELASTIC_NOTICES_INTERVAL"
INTERVAL_SECONDS = 5.0  # what Amazon recommends; one or two small requests to the own host
MAX_INTERVAL_SECONDS = 10.0  # of a service that does not answer: a third of the shortest notice, GCP's and Azure's
EARLIER_SECONDS = 5.0  # by how much a deadline has to be earlier than the one before, to be news
DMI = Path("/sys/class/dmi/id")
FILES = ("sys_vendor", "bios_vendor", "product_name", "chassis_asset_tag")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # of every machine of Azure; "Microsoft Corporation" is any Hyper-V


class Notices:
    """The notices of one run."""

    def __init__(self) -> None:
        self._wanted, self._interval = "auto", 0.0
        self._watches: list[Watch] = []

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Read the settings; a wrong one ends the run before it begins."""
        self._wanted = "auto" if (cloud := config.of(NOTICES)) is None else cloud
        self._interval = read_interval(os.environ)

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Find out which cloud this is, and begin to watch; elsewhere nothing is asked, and no thread starts."""
        self.elastic_run_ends()  # the agent has entered the job again, as another node
        if not (cloud := chosen(self._wanted)):
            return
        named, interval = self._wanted != "auto", self._interval or INTERVAL_SECONDS
        if not (sources := sources_of(cloud, os.environ, spot_only=not named)) and named:
            text = f"--notices={cloud} asks nothing, because AWS_EC2_METADATA_DISABLED=true is set: unset it"
            run.publish(Event("notices_off", text, Level.WARNING))
        for number, source in enumerate(sources):  # the warning about a service that does not answer is the first one's
            message = f"watching {source.name} for notices of a preemption"
            run.publish(Event("notices_on", message, Level.DEBUG))
            watch = Watch(source, run.leave, run.publish, interval, named=named and not number)
            self._watches.append(watch)
            watch.start()

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Ask no more."""
        while self._watches:
            self._watches.pop().stop()


def read_interval(environ: Mapping[str, str]) -> float:
    """Return the seconds between two requests from the environment; 0 for the default.

    Raises:
        UsageError: It is no number of seconds from 0.01 to 3600.
    """
    text = environ.get(INTERVAL_VARIABLE, "")
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if text and not 0.01 <= seconds <= 3600:
        raise UsageError(
            f"{INTERVAL_VARIABLE}={text!r} is not a number of seconds from 0.01 to 3600.",
            hint="Leave it out for one request every 5 s.",
        )
    return seconds


def sources_of(cloud: str, environ: Mapping[str, str], *, spot_only: bool = False) -> Sequence[Source]:
    """Return what to ask in a cloud; nothing where the environment says that there is no service.

    With ``spot_only`` a machine that is no spot machine of AWS or Azure is asked for nothing else. (GCP has the same
    keys on all machines, and terminates others too for maintenance.)
    """
    if cloud == "aws":
        from elastic_notices import aws

        if environ.get(aws.DISABLED_VARIABLE, "").lower() == "true":
            return ()
        endpoint = environ.get(aws.ENDPOINT_VARIABLE) or aws.ENDPOINT
        return tuple(aws.SpotKey(key, time.time, endpoint, spot_only=spot_only) for key in aws.PARSERS)
    if cloud == "gcp":
        from elastic_notices import gcp

        host = environ.get(gcp.HOST_VARIABLE) or gcp.HOST
        return tuple(gcp.MetadataKey(key, host) for key in gcp.PARSERS)
    from elastic_notices import azure

    endpoint = environ.get(azure.ENDPOINT_VARIABLE) or azure.ENDPOINT
    return (azure.ScheduledEvents(time.time, endpoint, spot_only=spot_only),)


def read_dmi(folder: Path = DMI) -> dict[str, str]:
    """Return what the firmware says, as far as it can be read."""
    found = {}
    for name in FILES:
        try:
            found[name] = (folder / name).read_text(errors="replace").strip()
        except OSError:
            continue
    return found


def cloud_of(dmi: Mapping[str, str]) -> str:
    """Return ``aws``, ``gcp`` or ``azure``; '' for a machine of none of them."""
    if dmi.get("sys_vendor") == "Amazon EC2" or dmi.get("bios_vendor") == "Amazon EC2":
        return "aws"
    if dmi.get("product_name") == "Google Compute Engine":
        return "gcp"
    return "azure" if dmi.get("chassis_asset_tag") == AZURE_TAG else ""


def chosen(wanted: str, read: Callable[[], Mapping[str, str]] = read_dmi) -> str:
    """Return the cloud for a value of ``--notices``; '' for none."""
    return cloud_of(read()) if wanted == "auto" else wanted


class Watch:
    """Watches one source, on a thread of its own.

    Two requests begin ``interval`` seconds apart, or more if the source waits by itself. ``named`` says that the user
    has named the cloud, and so has to know if its service has never answered.
    """

    def __init__(
        self,
        source: Source,
        leave: Callable[[str, float], None],
        publish: Callable[[Event], None],
        interval: float = INTERVAL_SECONDS,
        *,
        named: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._leave, self._publish = source, leave, publish
        self._interval, self._now, self._stopped = interval, now, threading.Event()
        self._deadline: float | None = None
        self._hints: set[str] = set()
        self._troubled, self._unproven = False, named
        self._pause = interval

    def start(self) -> None:
        """Begin, on a daemon thread: a request that hangs never holds up the end of the agent."""
        threading.Thread(target=self._run, name="elastic-notices", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. Returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._now()
            self.look()
            self._stopped.wait(max(0.0, self._pause - (self._now() - began)))

    def look(self) -> None:
        """Ask once, and say what is new."""
        try:
            found = self._source.look()
        except Exception as exc:  # whatever a service answers, the job goes on
            self._pause = min(2 * self._pause, max(MAX_INTERVAL_SECONDS, self._interval))
            if not self._troubled and not self._stopped.is_set():
                self._troubled = True
                message = (
                    f"no notices of a preemption: {self._source.name} does not answer as it should ({exc}); "
                    f"it is asked again, at least every {max(MAX_INTERVAL_SECONDS, self._interval):g} s"
                )
                if self._unproven:
                    text = f"{message}. {self._source.advice} --notices=none asks nothing"
                    self._publish(Event("notices_off", text, Level.WARNING))
                else:
                    self._publish(Event("notices_off", message, Level.DEBUG))
            return
        self._pause, self._troubled, self._unproven = self._interval, False, False
        if found is None:
            message = f"no notices of a preemption: {self._source.name} says that this is not a spot machine"
            self._publish(Event("notices_off", message, Level.DEBUG))
            self.stop()
            return
        for notice in found:
            self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        if self._stopped.is_set():
            return
        if notice.seconds is None:
            if notice.what not in self._hints:
                self._hints.add(notice.what)
                self._publish(Event("host_at_risk", f"{notice.what}: the job goes on here"))
            return
        deadline = self._now() + notice.seconds
        if self._deadline is None or deadline < self._deadline - EARLIER_SECONDS:
            self._deadline = deadline
            fields = {"left_s": round(notice.seconds, 1)}
            self._publish(Event("host_ends", f"{notice.what}, in {notice.seconds:.0f} s", Level.WARNING, fields))
            self._leave(notice.what, notice.seconds)
