"""The notices of a metadata service about this machine, and the client that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
