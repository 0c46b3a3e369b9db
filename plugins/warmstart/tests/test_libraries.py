from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from elastic_warmstart import libraries
from elastic_warmstart.libraries import Libraries, objection, openblas_threads


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({}, 4),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "8"}, 4),
        ({"OMP_NUM_THREADS": "2,1"}, 2),
        ({"OMP_NUM_THREADS": "0"}, 4),
        ({"OMP_NUM_THREADS": "-1"}, 4),
        ({"OMP_NUM_THREADS": "many"}, 4),
        ({"OMP_NUM_THREADS": "3", "GOTO_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "3", "GOTO_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}, 1),
    ],
)
def test_openblas_takes_as_many_threads_as_it_would_have_taken_when_it_was_loaded(
    environment: dict[str, str], threads: int
) -> None:
    assert openblas_threads(environment, 4) == threads


def test_random_states_and_keys_are_made_anew_and_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def note(what: str) -> Callable[[], None]:
        return lambda: called.append(what)

    process = SimpleNamespace(authkey=b"shared")
    fakes = {
        "numpy.random": SimpleNamespace(seed=note("numpy")),
        "torch": SimpleNamespace(random=SimpleNamespace(default_generator=SimpleNamespace(seed=note("torch")))),
        "multiprocessing.process": SimpleNamespace(current_process=lambda: process),
    }
    found = Libraries()
    for name in fakes:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found.renew({"OMP_NUM_THREADS": "1"})
    assert called == []
    assert not set(fakes) & set(sys.modules)
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    found.renew({"OMP_NUM_THREADS": "1"})
    assert called == ["numpy", "torch"]
    assert len(process.authkey) == 32


def test_every_openblas_that_is_loaded_gets_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(libraries, "_mapped_openblas", lambda: ["a", "b"])
    monkeypatch.setattr(libraries, "_setter", lambda path: None if path == "b" else given.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    found = Libraries()
    found.renew({"OMP_NUM_THREADS": "1"})  # as it was imported with
    assert given == []
    found.renew({"OMP_NUM_THREADS": "2"})
    found.renew({})
    assert given == [2, 3]


@pytest.mark.parametrize("bad", [True, False])
def test_a_fork_in_which_a_device_cannot_be_used_any_more_objects(monkeypatch: pytest.MonkeyPatch, bad: bool) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(_is_in_bad_fork=lambda: bad))
    reason = "what was preloaded has asked torch.cuda for devices, which a fork cannot use then"
    assert objection() == (reason if bad else None)


def test_without_torch_there_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    monkeypatch.delitem(sys.modules, "torch.xpu", raising=False)
    assert objection() is None
