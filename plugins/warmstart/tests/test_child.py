"""A standard stream made anew is what an interpreter that starts with this descriptor has."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHOW = """
def show(stream):
    buffer = stream.buffer
    return [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.fileno(), stream.name,
            stream.mode, type(buffer).__name__, buffer.name, stream.seekable(), stream.isatty(), repr(stream)]
import json, os, sys
streams = [sys.stdin, sys.stdout, sys.stderr]
"""
FRESH = f"{SHOW}\nos.write(2, json.dumps([show(stream) for stream in streams]).encode())"
RENEWED = f"""{SHOW}
from elastic_warmstart.child import renew
kept = list(streams)
sys.stdin.seekable(), sys.stdout.seekable()
for number in (0, 1):
    os.dup2(int(sys.argv[1 + number]), number)
for number, stream in enumerate(streams):
    renew(stream, number)
assert all(one is other for one, other in zip(kept, [sys.stdin, sys.stdout, sys.stderr]))
os.write(2, json.dumps([show(stream) for stream in streams]).encode())
"""


@pytest.mark.parametrize("flags", [["-u"], []])
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@pytest.mark.parametrize(
    "environment", [{}, {"PYTHONIOENCODING": "latin-1:replace"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_a_stream_made_anew_is_as_if_made_for_this_descriptor(
    flags: list[str], kind: str, environment: dict[str, str]
) -> None:
    ours, theirs = os.pipe() if kind == "pipe" else os.openpty()
    env = {**os.environ, **environment}
    python = [sys.executable, *flags, "-c"]
    try:
        fresh = subprocess.run([*python, FRESH], stdin=ours, stdout=theirs, stderr=subprocess.PIPE, env=env, check=True)
        renewed = subprocess.run(
            [*python, RENEWED, str(ours), str(theirs)],
            pass_fds=[ours, theirs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env,
            check=True,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert json.loads(renewed.stderr) == json.loads(fresh.stderr)
