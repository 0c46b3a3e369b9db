"""``nvidia-smi`` answers, fails, or never ends."""

from __future__ import annotations

import subprocess

import pytest

from elastic_health import gpu_memory


def test_both_streams_and_the_exit_code_are_returned() -> None:
    done = gpu_memory.ask_smi(["sh", "-c", "echo told; echo wrong >&2; exit 3"], 60.0)
    assert (done.returncode, done.stdout, done.stderr) == (3, "told\n", "wrong\n")


def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(OSError, match="missing"):
        gpu_memory.ask_smi(["/missing/nvidia-smi"], 60.0)


def test_a_process_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in an uninterruptible sleep, which SIGKILL does not end."""
    kept: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: kept.append(process))
    monkeypatch.setattr(gpu_memory, "REAP_MAX_SECONDS", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        gpu_memory.ask_smi(["sleep", "60"], 0.01)
    (process,) = kept
    assert process.poll() is None
    process.terminate()
    process.wait()
