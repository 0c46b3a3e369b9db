"""Fixtures of the tests: a run whose events reach its observers, and a listener for their output."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_core import JoinedRun, hookimpl
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event
from elastic_core.host.identity import installed_versions
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions

PATIENCE = 60.0
"""Seconds after which a test gives up on something; far more than anything takes."""


class Audience:
    """An observer that remembers what it hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self._changed = threading.Condition()

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        with self._changed:
            self.heard.append(event)
            self._changed.notify_all()

    def wait_for(self, name: str) -> Event:
        with self._changed:
            assert self._changed.wait_for(lambda: any(e.name == name for e in self.heard), PATIENCE), self.heard
            return next(event for event in self.heard if event.name == name)


@pytest.fixture
def audience() -> Audience:
    return Audience()


@pytest.fixture
def plugins(audience: Audience) -> Iterator[Plugins]:
    """The plugins of a run: so far one that listens."""
    plugins = Plugins()
    plugins.register("audience", audience)
    yield plugins
    assert plugins.close(PATIENCE) == ()


@pytest.fixture
def heard(audience: Audience) -> list[Event]:
    """All events that the observers were told so far."""
    return audience.heard


@pytest.fixture
def hear(audience: Audience) -> Callable[[str], Event]:
    """Waits for the first event of a name."""
    return audience.wait_for


@pytest.fixture
def start(plugins: Plugins) -> Callable[..., None]:
    """Tells the plugins that the run starts: ``start(log_dir, slot=0)``."""

    def start(log_dir: Path | None = None, *, slot: int = 0) -> None:
        config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_id="job", max_restarts=3)
        node = NodeInfo(
            node_id="c0ffee",
            host="node/1",
            host_id="h",
            slot=slot,
            local_world_size=2,
            role="trainer",
            versions=Versions(**installed_versions()),
        )
        plugins.run_starts(JoinedRun(config=config, run_uid="uid", node=node, log_dir=log_dir, look=pytest.fail))

    return start


@pytest.fixture
def end(plugins: Plugins) -> Callable[[], None]:
    """Tells the plugins that the run ends, and waits until they have heard everything."""

    def end() -> None:
        assert plugins.close(PATIENCE) == ()

    return end


@pytest.fixture
def port() -> int:
    """A port of 127.0.0.1 without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
