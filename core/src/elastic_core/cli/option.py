"""The flags of ``elastic run``: their click option, their declaration as a dataclass field, and the command."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar, cast, overload

import click
from click.core import ParameterSource

from elastic_core.config.environment import flag_variable
from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError

T = TypeVar("T")


def candidates(token: str, names: Collection[str]) -> list[str]:
    """Return the sorted flags that a token on the command line, without its dashes, may stand for.

    A whole name stands for itself, and two letters or more for every flag that begins with them. ``names`` are those of
    all flags, with ``_``.
    """
    name = token.replace("-", "_")
    if name in names:
        return [name]
    return sorted(full for full in names if full.startswith(name)) if len(name) > 1 else []


class FlagCommand(click.Command):
    """A command whose flags may be written with - or _, and abbreviated as long as the abbreviation is unique."""

    def __init__(self, name: str, *, context_settings: dict[str, Any] | None = None, **attributes: Any) -> None:
        both = {"token_normalize_func": self._full_name, "help_option_names": ["-h", "--help"]}
        super().__init__(name, context_settings={**both, **(context_settings or {})}, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error gets its context, so that the hint names the right help."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            exc.ctx = exc.ctx or ctx
            if isinstance(exc, click.NoSuchOption) and exc.option_name.startswith("--"):
                meant = [f"--{name}" for name in candidates(exc.option_name[2:], self._names)]
                if len(meant) > 1:
                    message = f"{exc.option_name} is short for more than one flag: {', '.join(meant)}."
                    raise UsageError(message, hint="Write as much of the name as only one of them has.") from None
            raise

    @cached_property
    def _names(self) -> set[str]:
        """The names of all flags, one-letter ones included, without their dashes."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        spellings = [text for option in options for text in (*option.opts, *option.secondary_opts)]
        return {
            text.lstrip("-").replace("-", "_") for text in (*spellings, *self.context_settings["help_option_names"])
        }

    def _full_name(self, token: str) -> str:
        """Return the full name of a flag, for every name that click compares."""
        meant = candidates(token, self._names)
        return meant[0] if len(meant) == 1 else token.replace("-", "_")


class Flag(click.Option):
    """One flag: it has a section of the help and an environment variable, and ``parse`` reads its text.

    Args:
        name: The flag without its dashes, with ``_``.
        section: The heading under which the help shows it.
        text: The description for the help.
        parse: Returns the value of a text, or raises :class:`~elastic_core.config.parse.Wrong`.
        short: A second spelling, as ``-m``.
        off: For a switch, the flag that turns it off, without its dashes.
        unset: The default in words, if it is not ``default``.
        fills: The field of RunConfig that takes the value as it is; '' where several flags decide together.
        attributes: Further arguments of click.Option.
    """

    def __init__(
        self,
        name: str,
        *,
        section: str,
        text: str,
        parse: Callable[[str], object] = str,
        short: str = "",
        off: str = "",
        unset: str = "",
        fills: str = "",
        **attributes: Any,
    ) -> None:
        spellings = [f"--{name}/--{off}" if off else f"--{name}", *([short] if short else [])]
        shown = f"{text}  [default: {unset}]" if unset else text
        super().__init__(spellings, callback=self._read, help=shown, envvar=flag_variable(name), **attributes)
        self.name: str = name
        self.section, self.text, self.unset, self.fills = section, text, unset, fills
        self._parse = parse

    def _read(self, ctx: click.Context, _: click.Parameter, given: Any) -> Any:
        """Return the value of a text; for a repeated flag, the values of all texts in one tuple."""
        if given is None or self.is_flag:
            return given
        if self.multiple:
            return tuple(chain.from_iterable(self.value_of(ctx, text) for text in given))
        return self.value_of(ctx, given)

    def value_of(self, ctx: click.Context, text: str) -> Any:
        """Return the value of a text, or raise UsageError."""
        try:
            return self._parse(text)
        except Wrong as wrong:
            source = ctx.get_parameter_source(self.name)
            raise UsageError(
                f"--{self.name} {text!r} {wrong}.{wrong.suggestion}",
                hint=f"The value comes from {self.envvar}." if source is ParameterSource.ENVIRONMENT else None,
            ) from None


class Section(str):
    """A heading of the help; each method declares a field of a dataclass to be a flag under it.

    The arguments are those of :class:`Flag`.
    """

    @overload
    def flag(self, text: str, *, parse: Callable[[str], T], default: str, **declared: str) -> T: ...
    @overload
    def flag(self, text: str, *, parse: Callable[[str], T], **declared: str) -> T | None: ...
    def flag(self, text: str, *, parse: Callable[[str], T], default: str | None = None, **declared: str) -> Any:
        """Declare a flag with a value."""
        value = None if default is None else parse(default)
        return self._field(value, text=text, parse=parse, default=default, show_default=bool(default), **declared)

    def repeated(self, text: str, *, parse: Callable[[str], tuple[T, ...]], **declared: str) -> tuple[T, ...]:
        """Declare a flag that may be repeated, each time with a value of several parts."""
        return cast("tuple[T, ...]", self._field((), text=text, parse=parse, multiple=True, **declared))

    def switch(self, text: str, *, default: bool = False, **declared: str) -> bool:
        """Declare a flag without a value."""
        shown = {"is_flag": True, "default": default, "show_default": default}
        return cast("bool", self._field(default, text=text, **shown, **declared))

    def _field(self, value: object, **declared: Any) -> Any:
        return field(default=value, metadata={"flag": partial(Flag, section=self, **declared)})
