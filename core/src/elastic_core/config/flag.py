"""The declaration of a flag, from which its option, its variable ``PET_<FLAG>``, its help and its checks are made.

Core declares its flags as fields of dataclasses, by the methods of :class:`Section`. A distribution declares its own as
objects of :class:`Flag`, which the hook ``elastic_flags`` returns.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from numbers import Real
from typing import Any, Generic, TypeVar, cast, overload

from elastic_core.config import parse as parsers
from elastic_core.errors import UsageError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(eq=False, kw_only=True)
class Flag(Generic[T_co]):
    """One flag of ``elastic run``, whose values are of the type ``T_co``: None is one of them without a default."""

    name: str  # without its dashes, with ``_``
    text: str  # the description for the help
    parse: Callable[[str], T_co]
    """Returns the value of a text, or raises :class:`~elastic_core.config.parse.Wrong`.
    :func:`~elastic_core.config.parse.switch` makes a flag that takes no value."""
    section: str = "Plugins"  # the heading under which the help shows it
    default: str | None = None  # the text that has the default as its value; None for the default None
    metavar: str | None = None  # the form of the text, for the help
    unset: str = ""  # the default in words, if it is not ``default``
    short: str = ""  # a second spelling, as ``-m``
    off: str = ""  # the flag that turns off a switch which is on by default, without its dashes
    repeated: bool = False  # whether it may be repeated; its value is then one tuple of all values
    after: str = ""  # the flag behind which the help shows this one; '' for the end of its section
    agreed: bool = False  # whether a job refuses a node with another value
    reader: str = ""  # the plugin that reads it: the name of the entry point that declares it
    limits_restarts: Callable[[Any], bool] = lambda value: False
    """Returns whether a value limits the restarts of a job by itself, so that ``--max_restarts`` has no default."""

    @cached_property
    def value(self) -> T_co:
        """The default."""
        return cast("T_co", None) if self.default is None else self.parse(self.default)

    @property
    def is_switch(self) -> bool:
        """True if the flag takes no value."""
        return self.parse is parsers.switch

    def read(self, text: str) -> T_co:
        """Return the value of a text, or raise UsageError."""
        try:
            return self.parse(text)
        except ValueError as wrong:  # Wrong, or another one of a plugin's parser
            raise UsageError(f"--{self.name} {text!r} {wrong}.{getattr(wrong, 'suggestion', '')}") from None

    def accept(self, value: Any) -> T_co:
        """Return the value for one that is given in Python, where a text stands for its value as on the command line.

        Raises:
            UsageError: No text of the flag has this value, or it is of another type.
        """
        if value == self.value:
            return self.value
        value = os.fspath(value) if isinstance(value, os.PathLike) else tuple(value) if type(value) is list else value
        shown = f"{self.name}={value!r}"
        try:
            if self.repeated and isinstance(value, tuple) and all(isinstance(text, str) for text in value):
                parse: Any = self.parse
                return cast("T_co", tuple(chain.from_iterable(map(parse, value))))
            if isinstance(value, str) and not isinstance(value, enum.Enum) and not self.repeated:
                return self.parse(value)
            is_number = type(value) is not bool and isinstance(value, Real)
            if is_number and isinstance(number := self.parse(str(value)), Real):
                return cast("T_co", number)
        except ValueError as wrong:
            raise UsageError(f"{shown} {wrong}.{getattr(wrong, 'suggestion', '')}") from None
        kinds = (tuple, frozenset) if self.value is None else type(self.value)
        if isinstance(value, kinds) and not self.repeated and type(value) is not (None if self.is_switch else bool):
            return cast("T_co", value)
        raise UsageError(f"{shown} is of the type {type(value).__name__}, which --{self.name} does not take.")


class Section(str):
    """A heading of the help; its methods declare a field to be a flag, with the arguments of :class:`Flag`."""

    @overload
    def flag(self, text: str, form: tuple[str, Callable[[str], T], str], **more: Any) -> T: ...
    @overload
    def flag(self, text: str, form: tuple[str, Callable[[str], T]], **more: Any) -> T | None: ...
    def flag(self, text: str, form: Any, **more: Any) -> Any:
        """Declare a flag with the name of the field; ``form`` has its metavar, its parser, and its default."""
        metavar, parse, default = (*form, None)[:3]
        made: Flag[Any] = Flag(name="", text=text, section=self, metavar=metavar, parse=parse, default=default, **more)
        return field(default=made.value, metadata={"flag": made})

    def switch(self, text: str, default: str = "0", **more: Any) -> bool:
        """Declare a flag without a value."""
        return self.flag(text, ("", parsers.switch, default), **more)


def flags_in(record: type) -> list[Flag[Any]]:
    """Return the flags that the fields of a dataclass declare, without those of its base class."""
    declared = [item for item in fields(record) if item.name in record.__annotations__ and "flag" in item.metadata]
    for item in declared:
        item.metadata["flag"].name = item.name
    return [item.metadata["flag"] for item in declared]
