"""torch's analysis of flight recorder dumps, in a few lines: ``python -m elastic_torch.flight_recorder.analysis``.

It is what ``torchfrtrace`` does. The dumps of gloo groups do not say which ranks a group has (torch 2.13), so that is
added from what the ranks have recorded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pickle
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

MOST_LINES = 4
DEFAULT_GROUP = "default_pg"


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts only: a dump has nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the dump holds {module}.{name}")


def read(prefix: str, world_size: int) -> dict[str, dict[str, Any]]:
    """Return the readable dumps by file name, in the form that torch's analysis takes."""
    found: dict[str, dict[str, Any]] = {}
    for rank in range(world_size):
        with contextlib.suppress(Exception):  # a torn dump of one rank leaves those of the others
            with open(f"{prefix}{rank}", "rb") as file:
                dump = _Plain(file).load()
            fields = {name: dump[name] for name in ("entries", "version", "pg_config")}
            for entry in fields["entries"]:
                entry.setdefault("frames", [])
            name = os.path.basename(f"{prefix}{rank}")
            found[name] = {"host_name": f"host_rank{rank}", "rank": rank, "pg_status": dump.get("pg_status"), **fields}
    return found


def complete(dumps: Collection[dict[str, Any]], world_size: int) -> None:
    """Add the groups that the dumps name without their ranks."""
    members: dict[tuple[str, str], set[int]] = {}
    for dump in dumps:
        for entry in dump["entries"]:
            members.setdefault(tuple(entry["process_group"]), set()).add(dump["rank"])
    for (_, description), ranks in members.items():
        if description == DEFAULT_GROUP:
            ranks.update(range(world_size))
    for dump in dumps:
        known = {name: group for name, group in dump["pg_config"].items() if group["ranks"] not in ("", "[]")}
        known = {name: group for name, group in known.items() if group["name"]}
        for (name, description), ranks in members.items():
            if dump["rank"] in ranks:
                known.setdefault(name, {"name": name, "desc": description, "ranks": str(sorted(ranks))})
        dump["pg_config"] = known


def analyse(prefix: str, world_size: int) -> list[str]:
    """Return the lines: for each group, the first collective that not all of its ranks have come to, or agree on.

    Raises ValueError where no dump can be read.
    """
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    details = read(prefix, world_size)
    if not details:
        raise ValueError(f"{prefix}* holds no readable dump")
    dumped = {dump["rank"] for dump in details.values()}
    newest: dict[tuple[int, str], str] = {}
    for dump in details.values():
        newest |= {(dump["rank"], entry["process_group"][0]): _name(entry) for entry in dump["entries"]}
    complete(details.values(), world_size)
    arguments = JobConfig().parse_args([os.path.dirname(prefix) or ".", "--allow-incomplete-ranks"])
    with contextlib.redirect_stdout(io.StringIO()):
        database = build_db(details, arguments, str(next(iter(details.values()))["version"]))
    lines = list(describe(database.collectives, dumped, newest))[:MOST_LINES]
    if undumped := sorted(set(range(world_size)) - dumped):  # torch decides little without all dumps
        lines += [] if lines else describe_newest(newest)[:MOST_LINES]
        lines.append(f"there is no dump here of {_ranks(undumped)}")
    return lines or ["all ranks have come to the same collectives"]


def _skip_torch() -> None:
    """Have the analysis imported without the rest of torch, which it does not use, and whose import takes seconds."""
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        for name, *below in (("torch",), ("torch.distributed", "distributed")):
            package = types.ModuleType(name)
            package.__path__ = [os.path.join(place, *below) for place in spec.submodule_search_locations]
            sys.modules[name] = package


def describe(
    collectives: Sequence[Any], dumped: Collection[int], newest: Mapping[tuple[int, str], str]
) -> Iterator[str]:
    """Yield a line for the first collective of each group that has not all of its ranks."""
    seen: set[str] = set()
    for found in collectives:
        which = f"{found.collective_name} number {found.collective_seq_id} of group {found.pg_desc}"
        missing = set(found.missing_ranks or ())
        if found.group_id in seen:
            continue
        if found.mismatch_collectives:
            others = [
                f"rank {rank} is in {other.collective_name}" for rank, other in found.mismatch_collectives.items()
            ]
            yield f"{which}: {', '.join(sorted(others))} instead"
        elif late := sorted(missing & set(dumped)):
            waiting = sorted((set(found.expected_ranks) - missing) & set(dumped))
            last = newest.get((late[0], str(found.pg_desc).partition(":")[0]), "none")
            waits, has = "waits" if len(waiting) == 1 else "wait", "has" if len(late) == 1 else "have"
            yield f"{which}: {_ranks(waiting)} {waits} in it, {_ranks(late)} {has} not come to it (but to {last})"
        elif not found.pass_check:
            yield f"{which}: the ranks do not agree ({found.type_of_mismatch or 'sizes or types differ'})"
        else:
            continue
        seen.add(found.group_id)


def describe_newest(newest: Mapping[tuple[int, str], str]) -> list[str]:
    """Return a line for each collective that is the newest of a rank in a group."""
    ranks_at: dict[tuple[str, str], list[int]] = {}
    for (rank, group), name in sorted(newest.items()):
        ranks_at.setdefault((group, name), []).append(rank)
    return [f"the newest of {_ranks(ranks)} in group {group} is {name}" for (group, name), ranks in ranks_at.items()]


def _name(entry: Mapping[str, Any]) -> str:
    number = entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]
    return f"{entry['profiling_name']} number {number}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


if __name__ == "__main__":
    _skip_torch()
    print("\n".join(analyse(sys.argv[1], int(sys.argv[2]))))
