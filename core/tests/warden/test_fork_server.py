"""How long the warden waits for a template, with a clock of the test's. What it does is in ``test_warden_warm.py``."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator

import pytest

from elastic_core.warden.fork_server import IMPORT_WITHIN, Nursery
from elastic_core.warden.linux import signal_group
from elastic_core.warden.spawn import Child, Kind

FOREVER = {
    "modules": ["torch"],
    "whole": True,
    "python": ["sh", "-c", "sleep 1000"],
    "program": [],
    "env": {"PATH": os.environ["PATH"]},
}
"""A template that never gets to the end of its imports."""


class Scene:
    """A nursery, the time, and what it has told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.nursery = Nursery(lambda event, **facts: self.told.append((event, facts)), lambda: self.now)

    def die(self, *, closing: bool = False) -> None:
        """Kill the template, and let it be known."""
        template = self.nursery.template
        assert template is not None
        assert template.pid is not None
        signal_group(template.pid, signal.SIGKILL)
        os.waitpid(template.pid, 0)
        template.hear()  # the end of its pipe
        self.nursery.died(template, -signal.SIGKILL, closing=closing)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    scene.nursery.begin(FOREVER)
    yield scene
    if scene.nursery.template is not None:
        scene.die(closing=True)


def child(kind: Kind = Kind.WORKER) -> Child:
    return Child(kind, {"tag": 1, "descriptors": []}, [])


def test_a_worker_waits_for_the_import_so_long_and_no_longer(scene: Scene) -> None:
    worker = child()
    scene.nursery.ask(worker)
    assert scene.nursery.due() == 100 + IMPORT_WITHIN
    scene.now += IMPORT_WITHIN - 1
    assert scene.nursery.released() == []
    assert not scene.nursery.late()
    scene.now += 1
    assert scene.nursery.released() == [worker]
    assert scene.nursery.late()
    assert scene.nursery.due() == math.inf
    scene.nursery.ask(child())
    assert scene.nursery.due() <= scene.now, "nobody waits for it once more"


def test_nobody_waits_for_a_template_that_will_not_be(scene: Scene) -> None:
    worker = child()
    scene.nursery.ask(worker)
    scene.die()
    assert scene.told == [("template_died", {"returncode": -signal.SIGKILL})]
    assert scene.nursery.released() == []
    scene.die()
    assert scene.told[1:] == [
        ("template_failed", {"reason": "it died twice while it imported torch (it was killed by SIGKILL)"})
    ]
    assert scene.nursery.template is None
    assert scene.nursery.due() == 0
    assert scene.nursery.released() == [worker]


def test_at_the_end_a_dead_template_is_not_made_again(scene: Scene) -> None:
    scene.die(closing=True)
    assert scene.nursery.template is None
    assert scene.told == []


def test_a_stop_dismisses_the_workers_that_wait_and_not_the_services(scene: Scene) -> None:
    worker, service = child(), child(Kind.SERVICE)
    for waiting in (worker, service):
        scene.nursery.ask(waiting)
    assert scene.nursery.dismiss() == [worker]
    assert scene.nursery.waiting == [service]
