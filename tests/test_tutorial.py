"""The tutorial: a reader who follows it sees what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Reader
from rig import Rig

TUTORIAL = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
def test_the_commands_of_the_tutorial_print_what_it_shows(rig: Rig, tmp_path: Path) -> None:
    Reader(rig, tmp_path).follow(TUTORIAL)
