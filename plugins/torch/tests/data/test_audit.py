from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_torch import ElasticDistributedSampler
from elastic_torch.data.audit import AuditLog, Step


def step(**changed: Any) -> Step:
    facts: dict[str, Any] = {
        "step": 0,
        "epoch": 0,
        "start": 0,
        "stop": 4,
        "world_size": 2,
        "global_batch_size": 4,
        "drop_last": False,
        "length": 10,
        "seed": 0,
        "order": "feistel-1",
    }
    return Step.of({**facts, **changed})


def written(path: Path) -> list[dict[str, Any]]:
    return [dict(json.loads(line)) for line in path.read_text().splitlines()]


def trained(path: Path | str, steps: int, rank: int = 0, state: dict[str, Any] | None = None) -> dict[str, Any]:
    sampler = ElasticDistributedSampler(range(10), 2, rank, global_batch_size=4, audit_log=path)
    if state is not None:
        sampler.load_state_dict(state)
    for _, _ in zip(range(steps), sampler.batches(), strict=False):
        sampler.advance()
    return dict(sampler.state_dict())


def test_each_committed_step_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_RUN_UID", "uid")
    monkeypatch.setenv("ELASTIC_ROUND", "3")
    trained(tmp_path / "deep" / "audit.jsonl", 2)
    first, *steps = written(tmp_path / "deep" / "audit.jsonl")
    who = {"elastic_audit": 1, "run": "uid", "round": 3, "rank": 0}
    assert first == {**who, "resumed": {"step": 0, "epoch": 0, "start": 0, "previous": None}}
    facts = {"world_size": 2, "global_batch_size": 4, "drop_last": False, "length": 10, "seed": 0, "order": "feistel-1"}
    assert steps == [
        {**who, **facts, "step": 0, "epoch": 0, "start": 0, "stop": 4, "own": [0, 2]},
        {**who, **facts, "step": 1, "epoch": 0, "start": 4, "stop": 8, "own": [4, 6]},
    ]


def test_rank_0_writes_unless_each_rank_has_a_file(tmp_path: Path) -> None:
    for rank in range(2):
        trained(tmp_path / "one.jsonl", 1, rank)
        trained(f"{tmp_path}/own_{{rank}}.jsonl", 1, rank)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "own_0.jsonl", "own_1.jsonl"]
    assert [record["rank"] for record in written(tmp_path / "one.jsonl")] == [0, 0]
    assert written(tmp_path / "own_1.jsonl")[-1]["own"] == [2, 4]


def test_a_later_round_appends_and_says_what_came_before_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    state = trained(path, 1)
    trained(path, 1, state=json.loads(json.dumps(state)))
    records = written(path)
    assert [record.get("step", "resumed") for record in records] == ["resumed", 0, "resumed", 1]
    assert records[2]["resumed"]["previous"] == {name: records[1][name] for name in state["previous"]}


def test_a_state_that_is_loaded_is_known_at_once(tmp_path: Path) -> None:
    """Whoever was killed between its last update and its line leaves no other rank to write it."""
    trained(tmp_path / "audit.jsonl", 0, state=trained(tmp_path / "other.jsonl", 3))
    (record,) = written(tmp_path / "audit.jsonl")
    assert record["resumed"]["previous"]["stop"] == 10


def test_lines_begin_anew_after_a_writer_that_was_killed_within_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"elastic_au')
    log = AuditLog(path, rank=0)
    log.step(step(), range(2))
    assert path.read_text().splitlines()[0] == '{"elastic_au'
    assert json.loads(path.read_text().splitlines()[1])["stop"] == 4


def test_a_full_disk_ends_the_log_and_not_the_training() -> None:
    log = AuditLog("/dev/full", rank=0)
    with pytest.warns(UserWarning, match=r"The audit log /dev/full ends here: .*No space left.*Training goes on\."):
        log.step(step(), range(2))
    log.step(step(), range(2))  # said once


def test_under_torchrun_a_run_has_its_job_s_name_and_rounds_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTIC_RUN_UID", raising=False)
    monkeypatch.delenv("ELASTIC_ROUND", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    log = AuditLog(tmp_path / "audit.jsonl", rank=0)
    assert (log.run, log.round) == ("job", None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": None}, "seed is None"),
        ({"drop_last": 1}, "drop_last is 1"),
        ({"epoch": True}, "epoch is True"),
        ({"stop": 11}, r"it takes samples \[0, 11\) of 10"),
        ({"start": 4}, r"it takes samples \[4, 4\) of 10"),
    ],
)
def test_facts_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(**changed)
