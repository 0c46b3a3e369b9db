"""The expectations of torch's own tests of its launcher's Python interface, in our words, for ours.

torch's are ``launcher/api_test``, ``rendezvous/api_test``, those of ``Std`` in ``multiprocessing/api_test``, and of
``agent/server`` those that run jobs of one node.

``scripts/callers.py`` makes the calls, of torch (``python callers.py torch FILE FOLDER``) or of ours, in one process.
This test asks ours, and compares with what torch 2.13 answers; ``OURS`` is where ours differs, for reasons that are in
python_api.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)
CALLERS = Path(__file__).parent / "scripts" / "callers.py"
WORKER = {
    "LOCAL_RANK": None,
    "RANK": None,
    "ROLE_RANK": None,
    "GROUP_RANK": "0",
    "ROLE_NAME": "trainer",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "id",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "WORLD_SIZE": "2",
    "launched": "True",
}
WRONG = "ValueError"
TORCHS: dict[str, Any] = {
    "parameters by place": ["backend", "endpoint", "id", 1, 2],
    "parameters by name": ["x", None, 7, "address"],
    "get_as_bool": [True] * 7 + [False] * 5 + [WRONG] * 5,
    "get_as_int": [0, -10, 4, 0, -4, 1, WRONG, WRONG, WRONG],
    "get_as default": [None, True, 5],
    "no backend": WRONG,
    "no node": WRONG,
    "more at least than at most": WRONG,
    "register twice": [None, None],
    "register another": WRONG,
    "Std": [0, 1, 2, 3],
    "Std.from_str": [0, 3, {"0": 1}, {"0": 1, "1": 2}, WRONG, WRONG, WRONG, WRONG],
    "what functions return": [None, [2, 3], 3_000_000, "a word"],
    "a worker that exits": [138, "<N/A>"],
    "a worker that segfaults": [-11, "SIGSEGV"],
    "what a worker is told": {rank: WORKER | dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank) for rank in "01"},
    "what a job of commands returns": {"0": None},
    "a failed job": [1, 1, 1, "RuntimeError: sad", True],
    "a handler whose job succeeds": {"0": None},
    "a handler whose job fails": "RuntimeError",
    "who is shut down": ["succeeds", "fails"],
    "an id of its own": [True],
    "no entrypoint": "AssertionError",
    "a restart": ["adds_ranks", False, "SUCCEEDED", {"0": 1.0, "1": 1.0}],
    "a result that failed": [True, "FAILED", {}],
    "what has failed": [1, "<N/A>"],
}
OURS = {
    "a handler whose job succeeds": {},
    "a handler whose job fails": "ChildFailedError",
    "no entrypoint": WRONG,
    "what a job of commands returns": {},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return our answers, by the name of the question."""
    folder = tmp_path_factory.mktemp("callers")
    command = [sys.executable, str(CALLERS), "elastic", str(folder / "answers.json"), str(folder / "logs")]
    env = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return found


@pytest.mark.parametrize("question", TORCHS)
def test_a_caller_sees_what_torchs_callers_see(answers: dict[str, Any], question: str) -> None:
    assert answers[question] == {**TORCHS, **OURS}[question]


def test_every_question_has_an_answer_of_torchs(answers: dict[str, Any]) -> None:
    assert set(answers) == set(TORCHS)
