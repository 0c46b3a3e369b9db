from __future__ import annotations

import pytest

from elastic_core.events import Level
from elastic_core.launch_config import LaunchConfig, configure


@pytest.mark.parametrize(("text", "level"), [("", Level.INFO), ("WARNING", Level.WARNING), ("loud", Level.INFO)])
def test_loglevel_holds_from_python_too(monkeypatch: pytest.MonkeyPatch, text: str, level: Level) -> None:
    monkeypatch.setenv("LOGLEVEL", text)
    assert configure(LaunchConfig()).least_level is level
