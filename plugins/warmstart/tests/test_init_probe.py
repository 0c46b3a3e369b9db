from __future__ import annotations

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_warmstart.libraries import COUNTED_CALL, COUNTER, COUNTER_HOME, watch_process_group


class Counter:
    """As torch's: counts nothing, but says what is done with it."""

    told: list[str]

    def __init__(self, name: str) -> None:
        self.name = name

    def guard(self) -> Counter:
        return self

    def __enter__(self) -> None:
        self.told.append(f"into {self.name}")

    def __exit__(self, *exc_info: object) -> None:
        self.told.append(f"out of {self.name}")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a stand-in for torch's module."""
    Counter.told = []
    home = SimpleNamespace(**{COUNTER: Counter})
    monkeypatch.setitem(sys.modules, COUNTER_HOME, home)
    return home


def call(home: SimpleNamespace, name: str, error: Exception | None = None) -> None:
    """Call the function as torch's decorator does."""
    with getattr(home, COUNTER)(name).guard():
        if error is not None:
            raise error


def test_it_is_told_once_when_the_call_is_over_and_nothing_of_it_is_left(home: SimpleNamespace) -> None:
    watch_process_group(lambda: Counter.told.append("told"))
    assert getattr(home, COUNTER) is not Counter
    call(home, COUNTED_CALL)
    assert Counter.told == [f"into {COUNTED_CALL}", f"out of {COUNTED_CALL}", "told"]
    assert getattr(home, COUNTER) is Counter


def test_a_call_that_fails_is_not_told_and_the_next_one_is(home: SimpleNamespace) -> None:
    watch_process_group(lambda: Counter.told.append("told"))
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as caught:
        call(home, COUNTED_CALL, error)
    assert [entry.name for entry in caught.traceback] == [caught.traceback[0].name, "call"]  # no frame of ours
    assert error.__context__ is None
    assert "told" not in Counter.told
    call(home, COUNTED_CALL)
    assert Counter.told[-1] == "told"


def test_other_calls_get_what_they_would_have_got(home: SimpleNamespace) -> None:
    watch_process_group(lambda: Counter.told.append("told"))
    assert type(getattr(home, COUNTER)("pytorch.wait_counter.c10d.new_group")) is Counter
    call(home, "pytorch.wait_counter.c10d.new_group")
    assert "told" not in Counter.told


@pytest.mark.parametrize("found", [None, SimpleNamespace()], ids=["no torch", "another torch"])
def test_where_there_is_no_such_counter_nothing_happens(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, COUNTER_HOME, found)
    watch_process_group(lambda: pytest.fail("told"))
    assert found is None or not vars(found)


def test_this_torch_takes_its_counter_from_there() -> None:
    """Should a later torch not, the time of the initialization is missing from every warm recovery."""
    pytest.importorskip("torch")
    dist: Any = import_module("torch.distributed")
    told = []
    watch_process_group(lambda: told.append(dist.is_initialized()))
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        assert told == [True]
    finally:
        dist.destroy_process_group()
