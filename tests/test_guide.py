"""The guide for users: who follows it sees what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import BLOCK, Reader
from rig import WARM, Rig

GUIDE = (Path(__file__).parents[1] / "docs" / "guide.md").read_text(encoding="utf-8")


@pytest.mark.timeout(600)
def test_the_commands_of_the_guide_print_what_it_shows(rig: Rig, tmp_path: Path) -> None:
    preload = {"PET_PRELOAD": "torch._dynamo"}  # which saves each worker the time to import it
    reader = Reader(rig, tmp_path, {**WARM, **preload, "CUDA_VISIBLE_DEVICES": ""})
    reader.follow(GUIDE)
    assert (reader.folder / "model.pt").exists()


def test_nothing_in_the_guide_is_left_untested() -> None:
    assert [
        block["text"] for block in BLOCK.finditer(GUIDE) if not block["path"] and block["language"] != "console"
    ] == []
