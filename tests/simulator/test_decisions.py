"""The decisions of agents: written by each agent of simulated jobs, and made again from the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulator import decisions, play as playing
from simulator.profiles import draw
from simulator.world import World

from elastic_core.decision_log import DecisionLog
from elastic_core.protocol import node
from elastic_operate.decision_file import lines, write


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return the files of all agents of a few jobs that meet many kinds of faults."""
    worlds: list[World] = []
    with pytest.MonkeyPatch.context() as patch:

        def world(*given: Any, **named: Any) -> World:
            worlds.append(World(*given, **named))
            return worlds[-1]

        patch.setattr(playing, "World", world)
        for seed in range(12):
            assert playing.play(draw(seed, "everything")).violation is None
    accounts = [agent.supervisor.account for made in worlds for agent in made.agents() if agent.supervisor]
    return ["\n".join(lines(account.decisions(), "a")) for account in accounts]


def test_each_decision_is_read_and_made_again_as_it_was(texts: list[str]) -> None:
    found = [decisions.replay(text) for text in texts]
    assert [differences for _, differences in found if differences] == []
    assert sum(count for count, _ in found) > 200
    assert {'"step"', '"decide"'} <= {name for name in ('"step"', '"decide"') for text in texts if name in text}


def test_a_change_of_the_state_machine_is_shown_with_the_part_that_differs(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = node.step

    def changed(state: node.NodeState, event: Any) -> Any:
        after, effects = made(state, event)
        return replace(after, row=replace(after.row, round=after.row.round + 1)), effects

    monkeypatch.setattr(node, "step", changed)
    (file := tmp_path / "decisions.jsonl").write_text(max(texts, key=len), encoding="utf-8")
    assert decisions.is_log(file.read_text(encoding="utf-8"))
    assert decisions.show(file.read_text(encoding="utf-8")) == 1
    shown = capsys.readouterr().out
    assert "state.row.round was 1; today 2" in shown
    assert "of them differ today" in shown


def test_a_file_can_name_no_class_but_those_of_decisions() -> None:
    call = '{"arguments": [{"class": "subprocess:Popen", "value": "true"}], "result": 1}'
    text = f'{{"decisions": 1, "release": "9"}}\n{call}'
    with pytest.raises(decisions.UnreadableLogError, match=r"line 2 cannot be read here.*elastic-core 9 wrote it"):
        decisions.replay(text)


def test_the_log_keeps_the_newest_calls_and_of_idle_ones_the_last(tmp_path: Path) -> None:
    log = DecisionLog()
    for number in range(3000):
        log.call(abs, number)
    assert [call.result for call in log.calls] == [*range(1000, 3000)]
    for number in range(3):
        log.call(float, number, idle=float)
    assert [call.result for call in log.calls][-2:] == [2999, 2.0]
    log.call(abs, 7, rows=399)
    assert len(log.calls) == 10, "each refers to 399 rows"
    with pytest.raises(ValueError, match="could not convert"):
        log.call(float, "x")
    assert log.calls[-1].error == "ValueError: could not convert string to float: 'x'"
    path = write(log.calls, "a", tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1 + 11
