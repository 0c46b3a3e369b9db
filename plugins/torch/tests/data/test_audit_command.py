from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.cli.commands import Elastic, run
from elastic_torch import ElasticDistributedSampler


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of two epochs of 10 samples, in three rounds with 2, 3 and 1 ranks; the second one was thrown away."""
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("ELASTIC_RUN_UID", "uid")
    state = kept = None
    for number, (world_size, steps) in enumerate(((2, 2), (3, 1), (1, 9))):
        monkeypatch.setenv("ELASTIC_ROUND", str(number))
        sampler = ElasticDistributedSampler(range(10), world_size, 0, global_batch_size=4, audit_log=path)
        if kept is not None:
            sampler.load_state_dict(kept)
        for epoch in range(sampler.epoch, 2):
            sampler.set_epoch(epoch)
            for _ in sampler.batches():
                sampler.advance()
                steps -= 1
                if steps == 0:
                    break
            if steps == 0:
                break
        state = sampler.state_dict()
        kept = state if number == 0 else kept
    return path


def audit_data(*line: str | Path) -> int:
    return run(Elastic(), ["audit-data", *map(str, line)])


def test_a_clean_log_is_proved(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_data(log, "--finished") == 0
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0: 10 of 10 samples, in 3 steps, world size 2, 1",
        "epoch 1: 10 of 10 samples, in 3 steps, world size 1",
        "1 step taken back and done again, from states that were loaded",
        "Proved: 0 skipped, 0 repeated, in 2 epochs.",
    ]


def test_a_lost_line_is_named_with_its_samples(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_text().splitlines(keepends=True)
    lost = next(place for place, line in enumerate(lines) if '"epoch": 1' in line and '"start": 4' in line)
    log.write_text("".join([*lines[:lost], lines[lost][:30] + "\n", *lines[lost + 1 :]]))
    assert audit_data(log) == 1
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0: 10 of 10 samples, in 3 steps, world size 2, 1",
        "epoch 1: 6 of 10 samples, in 2 steps, world size 1",
        "1 step taken back and done again, from states that were loaded",
        "1 line cut short, as when a writer is killed",
        "skipped: samples [4, 8) of epoch 1 (in the dataset 8, 4, 2, 1): after step 3 of round 2 came step 5 of "
        "round 2, which begins at 8",
        "NOT PROVED: 1 finding, the first is skipped, samples [4, 8) of epoch 1.",
    ]


def test_an_epoch_in_progress_is_told_and_an_end_is_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert audit_data(log) == 0
    assert "epoch 1: 8 of 10 samples so far, in 2 steps, world size 1" in capsys.readouterr().out
    assert audit_data(log, "--finished") == 1
    assert "nothing followed step 4 of round 2 in this epoch" in capsys.readouterr().out


def test_many_findings_are_counted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = ElasticDistributedSampler(range(50), 1, 0, global_batch_size=1, audit_log=log.with_name("many"))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in sampler.batches():
            sampler.advance()
    lines = log.with_name("many").read_text().splitlines(keepends=True)
    log.write_text("".join(lines[::2]))
    assert audit_data(log) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-2].startswith("… and ")
    assert sum(line.startswith("skipped:") for line in told) == 10


def test_programs_get_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_data(log, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    assert [epoch["used"] for epoch in report["epochs"]] == [10, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\nworld\n", "{path} is no audit log: none of its 2 lines is a record."),
        ("[1]\n", "Line 1 of {path} is no record of an audit log: it has no elastic_audit=1."),
        ('{"elastic_audit": 1}\n', "Line 1 of {path} is no record of an audit log: run, round and rank are None, None"),
        ("", "There is no record in the audit log.\n\nIs it the file that audit_log named?"),
    ],
)
def test_a_file_that_is_no_log_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert audit_data(path) == 2
    assert message.format(path=path) in capsys.readouterr().err


def test_files_that_cannot_be_ordered_are_refused(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = log.with_name("other")
    other.write_text(log.read_text().replace('"round": 2', '"round": null'))
    assert audit_data(log, other) == 2
    assert "These files cannot be judged together. Records without a round's number" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_data(tmp_path / "nothing") == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_command_needs_no_torch(log: Path) -> None:
    program = """
import sys
sys.modules["torch"] = None
from elastic_core.cli.main import main
sys.argv = ["elastic", "audit-data", *sys.argv[1:]]
sys.exit(main())
"""
    line = [sys.executable, "-c", program, str(log)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Proved: 0 skipped, 0 repeated, in 2 epochs.\n")
