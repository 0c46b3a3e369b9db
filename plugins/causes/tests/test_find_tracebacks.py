"""Python tracebacks and faulthandler's dumps, as programs really print them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_causes.find import crashed_thread, innermost, printed_exception
from elastic_causes.frames import Frame, parse_frames

RAISED = {
    "an exception of the program": (
        "def step():\n    raise ValueError('boom')\n\n\nstep()",
        ("ValueError", "ValueError: boom", "train.py:2 in step: raise ValueError('boom')"),
    ),
    "an exception of a library": (
        "import json\n\n\ndef load():\n    return json.loads('{')\n\n\nload()",
        (
            "json.decoder.JSONDecodeError",
            "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            "train.py:5 in load: return json.loads('{')",
        ),
    ),
    "an exception while another one is handled": (
        "def clean():\n    raise OSError('full')\n\n\ntry:\n    1 / 0\nfinally:\n    clean()",
        ("OSError", "OSError: full", "train.py:2 in clean: raise OSError('full')"),
    ),
    "a name without Error": (
        "class Odd(Exception): pass\nraise Odd('x')",
        ("Odd", "Odd: x", "train.py:2 in <module>: raise Odd('x')"),
    ),
    "a text of several lines": (
        "raise ValueError('a\\nb\\n\\nc')",
        ("ValueError", "ValueError: a\nb\n\nc", "train.py:1 in <module>: raise ValueError('a\\nb\\n\\nc')"),
    ),
    "no text": ("raise KeyError", ("KeyError", "KeyError", "train.py:1 in <module>: raise KeyError")),
}


def stderr_of(program: str, folder: Path) -> str:
    script = folder / "train.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[rank1]: [rank1]: ", "[default-0]:"])
def test_the_exception_that_stands_last_and_its_line_in_the_program(raised: str, prefix: str, tmp_path: Path) -> None:
    program, (name, text, line) = RAISED[raised]
    stderr = "".join(f"{prefix}{printed}\n" for printed in stderr_of(program, tmp_path).splitlines())
    found = printed_exception(f"step 1\n{stderr}")
    assert found is not None
    assert found[:2] == (name, text)
    assert str(innermost(found[2])) == line


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    f()\nValueError: boom\n'
LOGGED = "[W1124 08:00:00.1 TCPStore.cpp:125] recvValue failed: Connection reset by peer\n"


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        pytest.param(TRACEBACK.replace("\n", "\r\n"), "ValueError: boom", id="line ends of Windows"),
        pytest.param(TRACEBACK + "sys:1: ResourceWarning: unclosed file\n", "ValueError: boom", id="a line after it"),
        pytest.param(TRACEBACK + 300 * LOGGED, "ValueError: boom", id="lines of torch's logger after it"),
        pytest.param(TRACEBACK + "step\n" * 13, "", id="the program went on"),
        pytest.param("CUT\n  File 'm.py', line 9\ntorch.OutOfMemoryError: CUDA\n", "torch.OutOfMemoryError: CUDA"),
        pytest.param(
            '  File "a.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n', "SyntaxError: x"
        ),
        pytest.param("Traceback (most recent call last):\n  File 'a.py', line 1\n", "", id="killed while it wrote"),
        pytest.param("all is well\nepoch 3: loss 0.1\n", "", id="no exception"),
        pytest.param("note: nothing\nwarning: neither\n", "", id="no exception's name"),
        pytest.param("Segmentation fault (core dumped)\n", "", id="a shell's word"),
        pytest.param("\x00\x01", "", id="no text"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_only_an_exception_that_stands_last_counts(stderr: str, line: str) -> None:
    found = printed_exception(stderr)
    name, _, text = ("", "", "") if found is None else (found[1].partition("\n")[0]).partition(": ")
    assert (name, bool(text)) == (line.partition(": ")[0], bool(line.partition(": ")[2]))


def test_a_traceback_in_a_text_is_found_to_its_end() -> None:
    text = f"Caught ValueError in DataLoader worker process 1.\nOriginal {TRACEBACK}" + "more\n" * 40
    assert (found := printed_exception(text, within=None)) is not None
    assert found[0] == "ValueError"


def test_the_crashed_thread_of_a_dump_is_the_current_one(tmp_path: Path) -> None:
    program = """
import ctypes, faulthandler, threading, time
faulthandler.enable()

def decode():
    ctypes.string_at(0)

def others():
    time.sleep(60)

threading.Thread(target=decode).start()
others()
"""
    frames = crashed_thread(stderr_of(program, tmp_path))
    assert frames is not None
    assert str(innermost(frames)) == "train.py:6 in decode"


def test_a_text_without_a_dump_has_no_crashed_thread() -> None:
    assert crashed_thread(TRACEBACK) is None
    assert crashed_thread("Fatal Python error: Aborted\n") is None


def test_where_only_libraries_have_run_their_last_line_is_taken() -> None:
    assert innermost([]) is None
    library = Frame("/usr/lib/python3.11/runpy.py", 196, "_run_module", "x()")
    assert str(innermost([library])) == "runpy.py:196 in _run_module: x()"
    assert innermost([Frame("train.py", 1, "f"), library]) == Frame("train.py", 1, "f")
    assert parse_frames("no frames") == []
