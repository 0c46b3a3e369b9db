"""One planted defect."""

from __future__ import annotations

from dataclasses import dataclass

RENDEZVOUS = "elastic_core.rendezvous."


@dataclass(frozen=True)
class Mutant:
    """One planted defect."""

    name: str
    module: str
    old: str
    new: str
    profile: str
    """The profile whose plans notice it soonest."""
    most: int = 400
    """Plans that it may survive."""
    first: int = 0
    """The plan to begin with: rare ones are known to be noticed soon after it."""


def mutant(name: str, module: str, old: str, new: str, profile: str, most: int = 400, first: int = 0) -> Mutant:
    """One of a module of the rendezvous, unless the module is named in full."""
    return Mutant(name, module if "." in module else RENDEZVOUS + module, old, new, profile, most, first)
