"""One flag of ``elastic run``: where its value comes from, and how its text is read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from itertools import chain
from typing import Any

import click
from click.core import ParameterSource

from elastic_core.config import parse as values
from elastic_core.config.environment import flag_variable
from elastic_core.errors import UsageError


def candidates(token: str, names: Collection[str]) -> list[str]:
    """The flags that a flag on the command line may mean, in alphabetical order.

    A whole name means itself. Of a name that begins with ``token`` two letters are enough, if no other one does.

    Args:
        token: What was written after the dashes.
        names: Of all flags, without their dashes, with ``_``.
    """
    name = token.replace("-", "_")
    if name in names:
        return [name]
    return sorted(full for full in names if full.startswith(name)) if len(name) > 1 else []


class FlagCommand(click.Command):
    """A command whose flags may be written with - or _, and cut short as far as only one of them is meant."""

    def __init__(self, name: str, *, context_settings: dict[str, Any] | None = None, **attributes: Any) -> None:
        both = {
            "token_normalize_func": self._full_name,
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        }
        super().__init__(name, context_settings={**both, **(context_settings or {})}, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error knows whose it is, so that the hint names the right help."""
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
        """The names of all flags, those of one letter too, without their dashes."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        spellings = [text for option in options for text in (*option.opts, *option.secondary_opts)]
        return {
            text.lstrip("-").replace("-", "_") for text in (*spellings, *self.context_settings["help_option_names"])
        }

    def _full_name(self, token: str) -> str:
        """What click looks for in place of a flag on the command line, or of one that it is told of."""
        meant = candidates(token, self._names)
        return meant[0] if len(meant) == 1 else token.replace("-", "_")


class Flag(click.Option):
    """One option: in its section of the help, also read from its environment variable, its text read by ``parse``."""

    def __init__(self, *spellings: str, section: str, parse: Callable[[str], object] = str, **attributes: Any) -> None:
        super().__init__(spellings, callback=self._read, **attributes)
        self.envvar = flag_variable(self.name or "")
        self.section = section
        self._parse = parse

    def _read(self, ctx: click.Context, _: click.Parameter, given: Any) -> Any:
        """What was given, as the value that it means; for a flag that may be repeated, all its values in a row."""
        if given is None or self.is_flag:
            return given
        if self.multiple:
            return tuple(chain.from_iterable(self._meaning(ctx, text) for text in given))
        return self._meaning(ctx, given)

    def _meaning(self, ctx: click.Context, text: str) -> Any:
        try:
            return self._parse(text)
        except values.Wrong as wrong:
            source = ctx.get_parameter_source(self.name or "")
            raise UsageError(
                f"--{self.name} {text!r} {wrong}.{wrong.suggestion}",
                hint=f"The value comes from {self.envvar}." if source is ParameterSource.ENVIRONMENT else None,
            ) from None
