"""Healthy jobs in which a rank computes for long while the others wait for it: none is blamed."""

from __future__ import annotations

import pytest
from rig import Rig
from waiting import COMPUTING, check_healthy, program


@pytest.mark.parametrize("name", COMPUTING)
def test_a_rank_that_computes_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    check_healthy(rig, program(name))
