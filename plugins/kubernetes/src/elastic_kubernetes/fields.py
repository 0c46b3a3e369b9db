"""Fields of a document, each with its path, so that an error names the field, its value and what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a document."""

    value: Any
    path: str  # as messages name it, e.g. ``spec.replicaSpecs.Worker.replicas``
    source: str  # the file

    def wrong(self, what: str, hint: str | None = None) -> UsageError:
        """Return the error that the value is wrong; ``what`` follows the path and the value."""
        shown = repr(self.value) if isinstance(self.value, str) else f"{self.value!s:.80}"
        return UsageError(f"{self.source}: {self.path} {shown} {what}", hint=hint)

    def missing(self, name: str, hint: str | None = None) -> UsageError:
        """Return the error that this mapping lacks a field."""
        return UsageError(f"{self.source}: {self._below(name)} is missing.", hint=hint)

    def get(self, name: str) -> Field | None:
        """Return a field of this mapping; None where it is not there or null."""
        mapping = self.mapping()
        return None if mapping.get(name) is None else Field(mapping[name], self._below(name), self.source)

    def need(self, name: str, hint: str | None = None) -> Field:
        """Return a field of this mapping that must be there."""
        found = self.get(name)
        if found is None:
            raise self.missing(name, hint)
        return found

    def mapping(self) -> dict[str, Any]:
        """Return the value, a mapping whose keys are texts."""
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.wrong("is not a mapping of fields.", hint="Write it as `name: value`, one field a line.")
        return self.value

    def members(self, name: str) -> Iterator[Field]:
        """Yield the members of a list in this mapping; none where it is not there."""
        if (several := self.get(name)) is not None:
            yield from several.items()

    def items(self) -> Iterator[Field]:
        """Yield the members of this list."""
        if not isinstance(self.value, list):
            raise self.wrong("is not a list.", hint="Write each member on a line that begins with a dash.")
        for index, member in enumerate(self.value):
            yield Field(member, f"{self.path}[{index}]", self.source)

    def text(self) -> str:
        """Return the value, a text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong("is not a text.", hint="Put it between quotes.")
        return self.value

    def number(self, *, least: int) -> int:
        """Return the value, a whole number of at least ``least``."""
        if type(self.value) is not int or self.value < least:
            raise self.wrong(f"is not a whole number of at least {least}.")
        return self.value

    def only(self, known: Collection[str]) -> None:
        """Refuse fields of this mapping that are not among ``known``."""
        for name in self.mapping():
            if name not in known:
                raise UsageError(
                    f"{self.source}: there is no field {self._below(name)}.{did_you_mean(name, known)}",
                    hint=f"The fields here are {', '.join(known)}.",
                )

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
