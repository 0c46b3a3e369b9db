"""The hooks of the ``file`` backend: its options, and a connection to a job's directory."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from elastic_core import hookimpl
from elastic_core.errors import RendezvousConnectionError, UsageError
from elastic_core.rendezvous import RendezvousBackend, RendezvousOptions, RendezvousParameters, positive_seconds
from elastic_rdzv_file.backend import FileBackend
from elastic_rdzv_file.inotify import POLL_INTERVAL


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return a directory, and how often to look into it."""
    return RendezvousOptions(
        endpoint="DIRECTORY",
        endpoint_required=True,
        conf={
            "poll_interval": f"seconds between two looks for changes; by default {POLL_INTERVAL} on a network mount, "
            "and elsewhere none, as the kernel tells of them",
            "shared": "true: other users may own the job's directory, and write there [false]",
        },
    )


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> RendezvousBackend:
    """Return the job's directory below the endpoint.

    Raises:
        UsageError: The endpoint is no directory and cannot become one, or the interval is no number of seconds.
        RendezvousConnectionError: The job's directory cannot be made.
        RendezvousStateError: Another user has put something else there.
    """
    interval = params.get("poll_interval")
    parent, made = _directory(params.endpoint)
    seconds = None if interval is None else positive_seconds("poll_interval", interval)
    return FileBackend.open(parent, params.run_id, seconds, made=made, shared=bool(params.get_as_bool("shared")))


def _directory(endpoint: str) -> tuple[Path, bool]:
    path = Path(endpoint)
    if endpoint.startswith("file:"):
        url = urlsplit(endpoint)
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise UsageError(
                f"--rdzv_endpoint {endpoint!r} names no directory of this host.",
                hint="Write DIRECTORY or file:///DIRECTORY.",
            )
        path = Path(unquote(url.path))
    if not endpoint:
        raise UsageError(
            "The backend 'file' needs --rdzv_endpoint=DIRECTORY.", hint="Name one that every node can reach."
        )
    path = Path(os.path.abspath(os.path.expanduser(path)))
    if path.is_dir():
        return path, False
    try:
        path.mkdir(exist_ok=True)
    except FileNotFoundError as exc:
        if path.parent.is_dir():  # a file system of the kernel's, where nothing can be made
            raise UsageError(
                f"--rdzv_endpoint {endpoint!r}: no directory can be made in {str(path.parent)!r}.", hint="Name another."
            ) from exc
        raise UsageError(
            f"--rdzv_endpoint {endpoint!r}: there is no directory {str(path.parent)!r}.",
            hint="Create it, or fix the path.",
        ) from exc
    except (FileExistsError, NotADirectoryError) as exc:
        raise UsageError(f"--rdzv_endpoint {endpoint!r} is not a directory.", hint="Name a directory.") from exc
    except OSError as exc:
        raise RendezvousConnectionError(
            f"The rendezvous directory {str(path)!r} cannot be made: {exc.strerror}.",
            hint="Create it, writable for this user, or use another one.",
            lasting=True,
        ) from exc
    return path, True
