"""The flag of this distribution. A launch that names it imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import one_of

NONE = "none"
CLOUDS = ("auto", "aws", "gcp", "azure", NONE)


def cloud(text: str) -> str:
    """Parse the name of a cloud, or ``auto``; '' for ``none``."""
    return "" if not text or one_of(CLOUDS, text) == NONE else text


NOTICES: Flag[str | None] = Flag(
    name="notices",
    text="The cloud whose preemption notices this node obeys. The node asks for them every 5 s. With auto it reads "
    "from the machine's firmware which cloud it is in, and asks nothing on other machines. The flag "
    "needs elastic-notices.",
    section="Failure",
    parse=cloud,
    metavar="|".join(CLOUDS),
    unset="auto, where elastic-notices is installed",
    after="max_restarts",
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flag that ``elastic_notices.plugin`` reads."""
    return (NOTICES,)
