"""The options of click that are made of flags, and commands whose flags may be abbreviated."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import click
from click.core import ParameterSource

from elastic_core.config.environment import PLUGINS_VARIABLE, flag_variable
from elastic_core.config.flag import Flag
from elastic_core.config.parse import names
from elastic_core.errors import PluginError, UsageError

ORIGINS = "elastic_core.cli.option.origins"
"""The key of a context's ``meta`` for the scheduler's variables from which defaults of flags come, by flag."""


def candidates(token: str, names: Collection[str]) -> list[str]:
    """Return the sorted flags that a token on the command line, without its dashes, may stand for.

    A whole name stands for itself, and two letters or more for every flag that begins with them. ``names`` are those of
    all flags, with ``_``.
    """
    name = token.replace("-", "_")
    if name in names:
        return [name]
    return sorted(full for full in names if full.startswith(name)) if len(name) > 1 else []


def arrange(flags: Iterable[Flag[Any]], more: Iterable[Flag[Any]] = ()) -> list[Flag[Any]]:
    """Return all flags in the order of the help: ``more`` behind the flags that they name, or behind their sections."""
    found = [*flags]
    for each in more:
        behind = [number for number, other in enumerate(found) if other.name == each.after]
        behind = behind or [number for number, other in enumerate(found) if other.section == each.section]
        found.insert(behind[-1] + 1 if behind else len(found), each)
    return found


class FlagCommand(click.Command):
    """A command whose flags may be written with - or _, and abbreviated as long as the abbreviation is unique."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error gets its context, so that the hint names the right help."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        spellings = [text for option in options for text in (*option.opts, *option.secondary_opts)]
        known = {text.lstrip("-").replace("-", "_") for text in spellings}  # one-letter ones included

        def full_name(token: str) -> str:
            meant = candidates(token, known)
            return meant[0] if len(meant) == 1 else token.replace("-", "_")

        ctx.token_normalize_func = full_name  # click calls it with every name that it compares
        try:
            with _hints_with_sources(ctx):
                return super().parse_args(ctx, args)
        except click.UsageError as exc:
            exc.ctx = exc.ctx or ctx
            if isinstance(exc, click.NoSuchOption) and exc.option_name.startswith("--"):
                meant = [f"--{name}" for name in candidates(exc.option_name[2:], known)]
                if len(meant) > 1:
                    message = f"{exc.option_name} is short for more than one flag: {', '.join(meant)}."
                    raise UsageError(message, hint="Write as much of the name as only one of them has.") from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the hint of an error names the variables from which the values come that it quotes."""
        with _hints_with_sources(ctx):
            return super().invoke(ctx)


@contextmanager
def _hints_with_sources(context: click.Context) -> Iterator[None]:
    """Add to the hint of an error the variables that set the flags or values which its message quotes."""
    try:
        yield
    except (UsageError, PluginError) as exc:
        flags, quoted = {*re.findall(r"--(\w+)", exc.message)}, {*re.findall(r"'([^']*)'", exc.message)}
        for flag, value in {**context.params, **context.params.get("settings", {})}.items():
            texts = value if isinstance(value, tuple) else (value,)
            if quoted & {text for text in texts if isinstance(text, str)}:
                flags.add(flag)
        set_by = {flag: context.get_parameter_source(flag) for flag in sorted(flags)}
        variables = [flag_variable(flag) for flag, source in set_by.items() if source is ParameterSource.ENVIRONMENT]
        if quoted & set(names(os.environ.get(PLUGINS_VARIABLE, ""))):
            variables.append(PLUGINS_VARIABLE)
        variables += [source for flag, source in context.meta.get(ORIGINS, {}).items() if flag in flags]
        sources = [f"The value comes from {variable}." for variable in variables]
        exc.hint = "\n".join([*([exc.hint] if exc.hint else []), *sources]) or None
        raise


class FlagOption(click.Option):
    """The option of a flag; it has an environment variable, and the flag reads its text."""

    def __init__(self, flag: Flag[Any]) -> None:
        off = f"/--{flag.off}" if flag.off else ""
        shown = f"{flag.text}  [default: {flag.unset}]" if flag.unset else flag.text
        default: Any = None if flag.repeated else bool(flag.value) if flag.is_switch else flag.default
        super().__init__(
            [f"--{flag.name}{off}", *([flag.short] if flag.short else [])],
            help=shown,
            envvar=flag_variable(flag.name),
            metavar=flag.metavar,
            is_flag=flag.is_switch or None,
            multiple=flag.repeated,
            default=default,
            show_default=bool(default),
        )
        self.name: str = flag.name
        self.flag = flag

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value of a text; for a repeated flag, the values of all texts in one tuple."""
        if self.multiple:
            return tuple(chain.from_iterable(map(self.flag.read, value or ())))
        if self.is_flag:
            with suppress(click.BadParameter):  # the flag's own error is raised below
                return super().type_cast_value(ctx, value)
        return self.flag.read(value) if isinstance(value, str) else value
