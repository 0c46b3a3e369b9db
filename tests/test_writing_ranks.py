"""Healthy jobs in which a rank prints, writes or reports for long while the others wait for it: none is blamed."""

from __future__ import annotations

import pytest
from rig import Rig
from waiting import WRITING, check_healthy, program


@pytest.mark.parametrize("name", WRITING)
def test_a_rank_that_shows_its_work_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    check_healthy(rig, program(name))
