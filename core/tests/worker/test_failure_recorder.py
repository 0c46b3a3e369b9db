"""What an interpreter tells at its end, for each way to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TELLS = """
import sys
from elastic_core.forkserver.exit_probe import Farewell
farewell = Farewell()
farewell.watch(lambda failed: print("told" if failed else "over", flush=True))
"""
"""What comes before each program; it is `sitecustomize`, as in the fork server, so that the program is the main one."""


def end_of(program: str, folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(TELLS)
    (folder / "program.py").write_text(program)
    argv = [sys.executable, *(how or ("program.py",))]
    source = str(Path(__file__).parents[2] / "src")
    env = {"PYTHONPATH": f"{folder}:{source}"}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        pytest.param("raise ValueError", 1, "told", id="an exception"),
        pytest.param("def f():\n    raise ValueError\nf()", 1, "told", id="an exception in a function"),
        pytest.param("assert not 'syntax', 1 +", 1, "over", id="a syntax error"),
        pytest.param("", 0, "over", id="the end"),
        pytest.param("import sys; sys.exit(3)", 3, "over", id="sys.exit"),
        pytest.param("import sys; sys.exit('why')", 1, "over", id="sys.exit with words"),
        pytest.param("import os; os._exit(1)", 1, "", id="os._exit"),
        pytest.param("raise KeyboardInterrupt", -2, "over", id="Ctrl-C"),
        pytest.param(
            "try:\n    raise ValueError\nexcept ValueError:\n    pass", 0, "over", id="an exception that is caught"
        ),
        pytest.param("import code; code.interact(readfunc=lambda _: 1 / 0)", 1, "told", id="an exception of a console"),
        pytest.param(
            "import code; code.InteractiveInterpreter().runsource('1 / 0')", 0, "over", id="an exception in a console"
        ),
        pytest.param(
            "import threading; threading.Thread(target=lambda: 1 / 0).start()", 0, "over", id="an exception in a thread"
        ),
        pytest.param("import os\nif os.fork() == 0:\n    1 / 0\nos.wait()", 0, "over", id="an exception in a fork"),
        pytest.param(
            "import atexit; atexit.register(print, 'ours'); raise ValueError", 1, "ours\ntold", id="after all others"
        ),
        pytest.param(
            "import sys; sys.stdout.write('unfinished '); raise ValueError", 1, "unfinished told", id="after the output"
        ),
    ],
)
def test_what_has_failed_is_told_at_the_very_end(program: str, code: int, said: str, tmp_path: Path) -> None:
    ended = end_of(program, tmp_path)
    assert (ended.returncode, ended.stdout.strip()) == (code, said), ended.stderr


@pytest.mark.parametrize("how", [("-m", "program"), ("-c", "import program"), (".",)], ids=["-m", "-c", "a directory"])
def test_a_program_may_be_started_in_any_way(how: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import program")
    ended = end_of("raise ValueError", tmp_path, *how)
    assert (ended.returncode, ended.stdout.strip()) == (1, "told"), ended.stderr
