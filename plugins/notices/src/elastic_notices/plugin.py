"""The plugin: reads ``--notices``, and watches the metadata service of this machine's cloud while a run lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core import JoinedRun, hookimpl
from elastic_core.errors import UsageError
from elastic_core.events import Event, Level
from elastic_notices.flags import NOTICES

if TYPE_CHECKING:
    from elastic_core.config import RunConfig
    from elastic_notices.notice import Source

INTERVAL_VARIABLE = "ELASTIC_NOTICES_INTERVAL"
DMI = Path("/sys/class/dmi/id")
FILES = ("sys_vendor", "bios_vendor", "product_name", "chassis_asset_tag")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # of every machine of Azure; "Microsoft Corporation" is any Hyper-V


class Notices:
    """The notices of one run."""

    def __init__(self) -> None:
        self._wanted, self._interval = "auto", 0.0
        self._watches: list[Any] = []

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
        from elastic_notices.watch import INTERVAL_SECONDS, Watch

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
