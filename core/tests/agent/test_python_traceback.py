"""The user's own line, out of tracebacks as programs really print them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.agent.python_traceback import user_line

RAISED = {
    "an exception of the program": (
        "def step():\n    raise ValueError('boom')\n\n\nstep()",
        "train.py:2 in step: raise ValueError('boom')",
    ),
    "an exception of a library": (
        "import json\n\n\ndef load():\n    return json.loads('{')\n\n\nload()",
        "train.py:5 in load: return json.loads('{')",
    ),
    "an exception while another one is handled": (
        "def clean():\n    raise OSError('full')\n\n\ntry:\n    1 / 0\nfinally:\n    clean()",
        "train.py:2 in clean: raise OSError('full')",
    ),
    "a fatal signal": (
        "import faulthandler, os\nfaulthandler.enable()\n\n\ndef step():\n    os.kill(os.getpid(), 11)\n\n\nstep()",
        "train.py:6 in step",
    ),
}


@pytest.mark.parametrize("raised", RAISED)
def test_the_line_of_the_program(raised: str, tmp_path: Path) -> None:
    program, expected = RAISED[raised]
    script = tmp_path / "train.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    found = str(user_line(done.stderr))
    assert found == expected


def test_the_prefix_of_torch_is_passed_over() -> None:
    text = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 41, in train_step
[rank1]:     loss = model(batch)
[rank1]:            ^^^^^^^^^^^^
[rank1]:   File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
[rank1]:     return self._call_impl(*args, **kwargs)
[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)
"""
    assert str(user_line(text)) == "train.py:41 in train_step: loss = model(batch)"


@pytest.mark.parametrize("text", ["", "no traceback", "Traceback (most recent call last):\nValueError", "\x00\x01"])
def test_a_text_without_frames_has_no_line(text: str) -> None:
    assert user_line(text) is None


def test_where_only_libraries_have_run_their_last_line_is_taken() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/runpy.py", line 196, in _run_module\n    x()\n'
    )
    assert str(user_line(text)) == "runpy.py:196 in _run_module: x()"
