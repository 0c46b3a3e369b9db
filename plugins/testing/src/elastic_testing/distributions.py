"""A fixture that installs a distribution for one test, so that its entry points are found."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``install(distribution, entry_points, modules)``, as pip would, on ``sys.path`` for one test.

    The entry points are texts by group and name, the modules sources by name; what is imported is forgotten afterwards.
    """
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)

    def install(
        distribution: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str] | None = None
    ) -> None:
        information = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        information.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nSummary: It is for a test.\n"
        (information / "METADATA").write_text(metadata)
        lines = [
            line
            for group, members in entry_points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in members.items()))
        ]
        (information / "entry_points.txt").write_text("\n".join(lines))
        for name, source in (modules or {}).items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))

    yield install
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
