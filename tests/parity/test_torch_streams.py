"""The destinations of workers' streams under torchrun and here: the same, whichever process writes.

torch's tests are ``launcher/run_test``'s of logs and of ``PET_`` variables, ``multiprocessing/redirects_test`` and
``multiprocessing/tail_log_test``. Held elsewhere: every combination of redirects
and tee (``core/tests/agent/test_output.py``), and terminals (``tests/test_terminals.py``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import WARM, Agent, Rig

SCRIPT = Path(__file__).parent / "scripts" / "streams.py"
WRITERS = ("python", "child", "C")
LAUNCHERS = {"torchrun": ["torch.distributed.run"], "elastic run": ["elastic_core", "run"]}
FLAGS = {
    "PET_STANDALONE": "1",
    "PET_NPROC_PER_NODE": "5",
    "PET_MAX_RESTARTS": "0",
    "PET_ROLE": "trainer",
    "PET_LOG_DIR": "logs",
    "PET_REDIRECTS": "0:3,1:1",
    "PET_TEE": "1:2,2:3,3:3",
    "PET_LOCAL_RANKS_FILTER": "0,1,2,4",
    "PET_DUPLICATE_STDOUT_FILTERS": "python,, stdout of 2,nothing",
    "PET_DUPLICATE_STDERR_FILTERS": "stderr of 2",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}>:",
}
"""Of the five ranks 0 is redirected, 1 is redirected and teed, 2 is teed, 3 is not to be shown, and 4 is shown."""


def written(stream: str, rank: int, prefix: str = "") -> set[str]:
    """Return the output of a rank to a stream."""
    return {f"{prefix}{writer}, {stream} of {rank}" for writer in WRITERS}


def launched(rig: Rig, launcher: str) -> tuple[Agent, Path]:
    """A launcher with its own folder, in which its stderr goes to a file."""
    folder = rig.folder / launcher
    folder.mkdir()
    move, command = 'cd "$0" && exec "$@" 2>stderr', [sys.executable, "-m", *LAUNCHERS[launcher], str(SCRIPT)]
    return rig.start(["sh", "-c", move, str(folder), *command], env={**WARM, **FLAGS}), folder


@pytest.mark.timeout(300)
def test_streams_go_where_torchrun_sends_them(rig: Rig) -> None:
    for agent, folder in [launched(rig, launcher) for launcher in LAUNCHERS]:
        assert agent.exit_code() == 0, (folder / "stderr").read_text()

        def kept(name: str, folder: Path = folder) -> set[str]:
            [file] = folder.glob(f"logs/*/*/{name}")
            return set(file.read_text().splitlines())

        shown = written("stdout", 2, "<trainer 2>:") | written("stdout", 4)
        if folder.name == "torchrun":  # lets lines of two ranks run into each other
            assert sorted("".join(agent.lines)) == sorted("".join(shown))
        else:
            assert set(agent.lines) == shown
        said = {line for line in (folder / "stderr").read_text().splitlines() if "stderr of" in line}
        teed = written("stderr", 1, "<trainer 1>:") | written("stderr", 2, "<trainer 2>:")
        assert said == teed | written("stderr", 4)
        for rank in range(4):
            for stream in ("stdout", "stderr"):
                assert kept(f"*{rank}/{stream}.log") == written(stream, rank)
        assert kept("filtered_stdout.log") == {"<trainer 2>:python, stdout of 2"}
        assert kept("filtered_stderr.log") == written("stderr", 2, "<trainer 2>:")
