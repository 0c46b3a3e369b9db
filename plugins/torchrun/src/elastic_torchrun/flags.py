"""From the ``Namespace`` with which a program calls ``torch.distributed.run.run`` to flags of ``elastic run``."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Collection, Sequence

BY_HAND = ("rdzv_backend", "node_rank", "master_addr", "master_port")
"""The flags that number the nodes of a static job. Such a job needs them, also where they have torch's defaults."""
DIFFERENT = ("max_restarts", "signals_to_handle")
"""Flags whose default is not torch's: torch's own is passed on if it was written on a command line."""
SCRIPT, ARGUMENTS = "training_script", "training_script_args"


def flags_of(args: Namespace, parser: ArgumentParser, written: Collection[str] = ()) -> list[str]:
    """Return the command line of ``elastic run`` that means the same.

    Some parameters may be missing, be numbers instead of texts, or None. What has its default by torchrun's
    ``parser`` is left out, unless it was ``written`` on a command line.
    """
    explicit = {*(BY_HAND if _is_static(args) else ()), *(name for name in DIFFERENT if name in written)}
    flags: list[str] = []
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if not action.option_strings or value is None or (value == action.default and action.dest not in explicit):
            continue
        flag = max(action.option_strings, key=len)
        if action.nargs != 0:
            flags.append(f"{flag}={_text(value)}")
        elif value:
            flags.append(flag)
    if not getattr(args, "use_env", True):  # torch.distributed.launch, unless told otherwise
        flags.append("--pass_local_rank")
    return [*flags, str(getattr(args, SCRIPT)), *map(str, getattr(args, ARGUMENTS, None) or ())]


def written_in(line: Sequence[str], parser: ArgumentParser) -> set[str]:
    """Return the parameters that a command line gives, whatever their values; ``parser`` loses its defaults."""
    for action in parser._actions:
        action.default = SUPPRESS
    return set(vars(parser.parse_args(line)))


def _is_static(args: Namespace) -> bool:
    return (
        getattr(args, "rdzv_backend", "static") == "static"
        and not getattr(args, "standalone", False)
        and str(getattr(args, "nnodes", "1")) not in ("1", "1:1")
    )


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):  # of texts to look for; a comma within one is doubled
        return ",".join(str(item).replace(",", ",,") for item in value)
    return str(value)
