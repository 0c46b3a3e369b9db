"""The expectations of torch's tests of its rendezvous handlers, in our words, for our handlers for plain torchrun.

They are the files below torch's ``test/distributed/elastic/rendezvous``; most of it is from
``dynamic_rendezvous_test.py``. ``scripts/handlers.py`` makes the calls, through torch's registry, of ours or of torch's
own ``c10d``. This test asks ours, and compares with what torch 2.13 answers; ``OURS`` is where ours differs, as
python_api.md says.

Parameters and the registry (``api_test.py``) are in ``test_torch_callers.py``, handlers that others install
(``out_of_tree_rendezvous_test.py``) in ``plugins/torchrun/tests/test_foreign_registry.py``. Our ``c10d`` and ``static``
are no handlers of torchrun's: endpoints, options and stores that are not there (``c10d_rendezvous_backend_test.py``,
``static_rendezvous_test.py``, ``utils_test.py``) are in ``plugins/c10d/tests`` and
``core/tests/config/test_rdzv_conf.py``, those of ``etcd_rendezvous_backend_test.py`` in ``plugins/etcd/tests``.
``plugins/torchrun/tests/test_handlers.py`` has nodes that are lost. Not asked is what only torch's package can see:
its state, its operations and its timers. What callers in Python write for ``static`` is at the end of this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import running
from redis_servers import redis_server

from elastic_torchrun.launch_config import LaunchConfig, configure

pytestmark = pytest.mark.timeout(300)
HANDLERS = Path(__file__).parent / "scripts" / "handlers.py"
TORCHS: dict[str, Any] = {
    "before a round": [0, False],
    "what a handler is called": [True, "pair", True],
    "ranks": [[0, 1], True],
    "the workers' store": [True, "127.0.0.1"],
    "a store for all nodes": "value",
    "in a round": [0, False],
    "a node asks again": True,
    "ranks of the next round": [0, 1],
    "keys of the round before": [False, False],
    "an end": [True, True],
    "an end once more": [True, True],
    "a node by itself": [0, 1, "127.0.0.2"],
    "nodes that wait": True,
    "a round with the newcomer": [True, 0],
    "closed by another": True,
    "a round of a closed job": ["RendezvousClosedError", "RendezvousClosedError"],
    "the end of a closed job": [True, True],
    "a node gives up": [True, True, "RendezvousClosedError"],
    "an id is used again": ["", "RendezvousClosedError"],
    "closed before a round": True,
    "nobody comes": "RendezvousTimeoutError",
    "nobody listens": "RendezvousConnectionError",
    "durations that are none": ["ValueError", "ValueError", "ValueError"],
    "protocols": ["", "ValueError"],
    "answers that may take no time": ["ValueError", "ValueError"],
    "threads that are left": ["MainThread"],
}
OURS = {"an id is used again": ["", ""], "closed before a round": False}
OF_ETCD = {"protocols", "answers that may take no time"}


@pytest.fixture(scope="module", params=["elastic-etcd", pytest.param("redis", marks=pytest.mark.variant)])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of our handler in torch's registry."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def answers(backend: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answers of our handler, by the name of the question."""
    folder = tmp_path_factory.mktemp("handlers")
    with ExitStack() as stack:
        if backend == "redis":
            endpoint, config = stack.enter_context(redis_server(folder / "redis")).endpoint, {}
        else:
            endpoint, config = stack.enter_context(running(folder / "etcd")).endpoint, {"durable": "true"}
        command = [sys.executable, str(HANDLERS), backend, endpoint, json.dumps(config), "answers.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return found


@pytest.mark.parametrize("question", TORCHS)
def test_a_caller_sees_what_callers_of_torchs_handlers_see(
    answers: dict[str, Any], backend: str, question: str
) -> None:
    if question in OF_ETCD and "etcd" not in backend:
        assert question not in answers
    else:
        assert answers[question] == {**TORCHS, **OURS}[question]


def test_every_answer_has_a_question(answers: dict[str, Any]) -> None:
    assert set(answers) <= set(TORCHS)


HOST = "localhost:123"


@pytest.mark.parametrize(
    ("endpoint", "nodes", "config", "place"),
    [
        pytest.param(HOST, 2, {"rank": 1}, (1, HOST), id="a_number"),
        pytest.param(HOST, 2, {"rank": "1", "timeout": 60}, (1, HOST), id="a_number_as_text"),
        pytest.param(HOST, 2, {}, None, id="no_number"),
        pytest.param(HOST, 2, {"rank": None}, None, id="nothing_for_a_number"),
        pytest.param(HOST, 2, {"rank": 2}, None, id="no_such_node"),
        pytest.param(HOST, 2, {"rank": "first"}, None, id="a_word"),
        pytest.param("", 1, {"rank": 0}, None, id="no_endpoint"),
        pytest.param(HOST, 1, {}, (0, HOST), id="one_node_needs_no_number"),  # torch refuses it
        pytest.param("localhost", 1, {"rank": 0}, (0, "localhost"), id="no_port"),  # torch refuses it
        pytest.param("[::1]:90", 1, {"rank": 0}, (0, "[::1]:90"), id="ipv6"),
    ],
)
def test_nodes_of_static_are_numbered_by_hand(
    endpoint: str, nodes: int, config: dict[str, Any], place: tuple[int, str] | None
) -> None:
    given = LaunchConfig(nodes, nodes, rdzv_backend="static", rdzv_endpoint=endpoint, rdzv_configs=config)
    if place is None:
        with pytest.raises(ValueError):  # noqa: PT011 - torch's kind; the words are others
            configure(given)
    else:
        run = configure(given)
        assert (run.node_rank, run.rdzv_endpoint) == place
