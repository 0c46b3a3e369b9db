"""A checkpoint's writer dies at every single call that changes the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "disk_crash.py"


def deaths(folder: Path, variant: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), str(folder), variant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", ["kill", "torn"])
def test_a_writer_that_is_killed_at_any_call_leaves_the_newest_checkpoint_intact(tmp_path: Path, variant: str) -> None:
    found = deaths(tmp_path, variant)
    assert [death["at"] for death in found] == list(range(len(found)))
    calls = {death["what"].split()[0] for death in found}
    assert calls == (
        {"write"}
        if variant == "torn"
        else {"open", "write", "fsync", "rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir"}
    )
    steps = [death["step"] for death in found]
    assert steps == sorted(steps), "the new one, once it is there, stays"
    assert {*steps} == {20, 30} if variant == "kill" else {*steps} == {20}
    for death in found:
        assert death["whole"], death
        assert death["damage"] == [], death
        assert death["goes on"], death
        assert death["left"] == [], death
        assert death["latest"].endswith(("020", "030")), death
        assert not (death["step"] == 20 and death["latest"].endswith("030")), death


@pytest.mark.timeout(900)
def test_a_power_failure_before_any_call_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    found = deaths(tmp_path, "power")
    assert {death["step"] for death in found} == {20, 30}
    for death in found:
        assert death["whole"], death
        assert death["damage"] == [], death
        assert death["goes on"], death
    published = [death["at"] for death in found if "latest" in death["what"]]
    assert all(death["step"] == 30 for death in found if death["at"] > max(published)), "what is published is durable"
