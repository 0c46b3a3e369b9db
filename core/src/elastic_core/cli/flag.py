"""One flag of ``elastic run``: where its value comes from, and how its text is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import click
from click.core import ParameterSource

from elastic_core import values
from elastic_core.environment import flag_variable
from elastic_core.errors import UsageError


class FlagCommand(click.Command):
    """A command whose flags may be written with - or _."""

    def __init__(self, name: str, *, context_settings: dict[str, Any] | None = None, **attributes: Any) -> None:
        both = {
            "token_normalize_func": lambda token: token.replace("-", "_"),
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
            raise


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
