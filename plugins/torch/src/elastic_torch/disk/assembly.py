"""The sources of a checkpoint when several directories have it, or parts of it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_torch.disk.catalog import Holding
from elastic_torch.disk.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Assembly:
    """The copies that give every directory the whole checkpoint."""

    manifest: Manifest  # of the save that directories without a whole one of their own get
    folder: str  # its folder, where it is
    sends: tuple[tuple[str, int], ...]
    """The files that go round, each with the directory that has it; in an order that all share."""
    needs: Mapping[int, frozenset[str]]  # by directory, which of them it lacks


def assemble(holdings: Mapping[int, Holding], directories: int) -> Assembly | None:
    """Return how all directories get what some have; None where no save can be put together.

    Islands with a whole checkpoint keep their own, though another save of the same position may differ in its files:
    what was trained is the same.
    """
    lacking = [i for i in range(directories) if i not in holdings or not holdings[i].whole]
    saves: dict[str, dict[int, Holding]] = {}
    for directory in sorted(holdings):
        saves.setdefault(holdings[directory].manifest.save_id, {})[directory] = holdings[directory]
    complete = {
        save_id: parts
        for save_id, parts in saves.items()
        if frozenset().union(*(part.intact for part in parts.values())) >= {*_first(parts).manifest.files}
    }
    if not complete:
        return None
    save_id = min(complete, key=lambda name: (-len(complete[name]), name))
    parts = complete[save_id]
    chosen = _first(parts)
    names = {*chosen.manifest.files}
    needs = {i: frozenset(names - parts[i].intact if i in parts else names) for i in lacking}
    wanted = sorted({name for lacks in needs.values() for name in lacks})
    sends = tuple((name, min(i for i, part in parts.items() if name in part.intact)) for name in wanted)
    return Assembly(chosen.manifest, chosen.folder, sends, needs)


def _first(parts: Mapping[int, Holding]) -> Holding:
    return parts[min(parts)]
