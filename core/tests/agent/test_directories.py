"""The mark of a directory, which says when no process needs the directory any more."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_core.agent.directories import MARK, Slot, marked, names_free_slot
from elastic_core.host.identity import boot_id, network_id


@pytest.fixture
def slot() -> Iterator[Slot]:
    with closing(Slot.take(f"test_directories/{uuid.uuid4()}")) as taken:
        yield taken


def test_a_mark_names_a_slot_that_is_free_once_all_its_holders_are_gone(tmp_path: Path, slot: Slot) -> None:
    with marked(tmp_path, slot.name):
        text = (tmp_path / MARK).read_text(encoding="utf-8")
    copy = os.dup(slot.fileno())
    assert not names_free_slot(text)
    slot.close()
    assert not names_free_slot(text), "a process that the node has started lives"
    os.close(copy)
    assert names_free_slot(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{boot_id()} {network_id()}\n",
        f"{boot_id()} {network_id()}",
        f"{uuid.uuid4()} {network_id()}\nelastic/free",
        f"{boot_id()} 00000000\nelastic/free",
    ],
    ids=["empty", "no slot", "one line", "another boot", "another network namespace"],
)
def test_a_mark_whose_slot_cannot_be_seen_from_here_says_nothing(text: str) -> None:
    assert not names_free_slot(text)


def test_an_agent_that_lives_to_its_end_takes_the_mark_away(tmp_path: Path, slot: Slot) -> None:
    """Files there afterwards, the results of a call, are not another agent's to remove."""
    with marked(tmp_path, slot.name):
        assert os.listdir(tmp_path) == [MARK]
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_has_no_mark(tmp_path: Path) -> None:
    with marked(tmp_path / "missing", "elastic/free"):
        assert os.listdir(tmp_path) == []
