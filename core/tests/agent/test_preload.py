"""What the fork server imports, and for how long a newcomer waits for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.agent import preload
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.warden.client import Warden
from elastic_core.warden.messages import ForkServerFailed, ForkServerReady


def config(kind: ProgramKind = ProgramKind.SCRIPT, **settings: Any) -> RunConfig:
    return RunConfig(program=Program(kind, "train.py"), **settings)


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (config(preload=("numpy", "torch")), ("numpy", "torch")),
        (config(preload=()), ()),
        (config(warm_start=False), ()),
        (config(ProgramKind.EXECUTABLE, preload=("torch",)), ()),
    ],
)
def test_the_fork_server_imports_what_the_run_names(run: RunConfig, names: tuple[str, ...]) -> None:
    started: list[tuple[str, ...]] = []
    warden: Any = SimpleNamespace(preload=lambda names, **_: started.append(names))
    preload.begin(warden, run, {})
    assert preload.modules(run) == names
    assert started == [names][: bool(names)]


@pytest.mark.parametrize(("there", "names"), [(True, ("torch",)), (False, ())])
def test_torch_is_what_is_imported_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, there: bool, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(preload, "find_spec", lambda name: SimpleNamespace() if there and name == "torch" else None)
    assert preload.modules(config()) == names


@pytest.mark.parametrize(("module", "outcome"), [("json", ForkServerReady), ("no_such_module", ForkServerFailed)])
def test_waiting_ends_with_the_imports_or_with_their_failure(tmp_path: Path, module: str, outcome: type) -> None:
    script = tmp_path / "train.py"
    script.touch()
    warden = Warden.start()
    try:
        run = RunConfig(program=Program(ProgramKind.SCRIPT, str(script)), nproc_per_node=2, preload=("types", module))
        preload.begin(warden, run, os.environ)
        assert [type(event) for event in preload.wait_until_ready(warden)] == [outcome]
    finally:
        warden.close(30.0)


def test_waiting_is_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "PATIENCE", 0.01)
    warden = Warden.start()
    try:
        assert preload.wait_until_ready(warden) == []
    finally:
        warden.close(30.0)


@pytest.mark.parametrize(
    ("named", "later"),
    [
        pytest.param(None, preload.LATER, id="what torch imports late is imported late"),
        pytest.param(("torch",), (), id="who says what to import has said it all"),
    ],
)
def test_the_fork_server_has_the_threads_that_workers_have(
    monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...] | None, later: tuple[str, ...]
) -> None:
    monkeypatch.setattr(preload, "find_spec", lambda name: SimpleNamespace())
    asked: dict[str, Any] = {}
    warden: Any = SimpleNamespace(preload=lambda names, **facts: asked.update(facts, names=names))
    preload.begin(warden, config(nproc_per_node=2, preload=named), {"PATH": "/bin"})
    assert asked == {
        "names": ("torch",),
        "later": later,
        "python": [sys.executable, "-u"],
        "program": ["train.py"],
        "env": {"PATH": "/bin", "OMP_NUM_THREADS": "1"},
    }
