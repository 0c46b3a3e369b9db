from __future__ import annotations

from typing import Any

import pytest

from elastic_core.config.parse import Stream, StreamMap
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig, Timing
from elastic_core.errors import UsageError


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({"join_timeout": 0.0}, "--rdzv_conf join_timeout=0 is not a positive number of seconds."),
        ({"beat_interval": -1.0}, "--rdzv_conf beat_interval=-1 is not a positive number of seconds."),
        ({"last_call_timeout": -0.5}, "--rdzv_conf last_call_timeout=-0.5 is not a positive number of seconds."),
        ({"fence_after": float("nan")}, "--rdzv_conf fence_after=nan is not a positive number of seconds."),
        ({"lost_after": 3.0}, "--rdzv_conf lost_after=3 is less than two heartbeats of 2 s."),
    ],
)
def test_a_duration_that_cannot_be_is_refused_by_name_and_value(durations: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Timing(**durations)
    assert refused.value.message.startswith(message)


def test_the_last_call_may_be_left_out() -> None:
    assert Timing(last_call_timeout=0.0).last_call_timeout == 0
    assert Timing(resize_wait=0.0).resize_wait == 0


def test_ranks_that_a_map_does_not_name_have_its_default() -> None:
    streams = StreamMap(default=Stream.OUT, by_rank={12: Stream.ALL})
    assert [streams[0], streams[12]] == [Stream.OUT, Stream.ALL]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node=0 is less than 1. Did you mean '1'?"),
        ({"nproc_per_node": "2"}, "nproc_per_node='2' is a text, not the value that it stands for."),
        ({"min_nodes": 0}, "min_nodes 0 is not a whole number of at least 1."),
        ({"min_nodes": 3, "max_nodes": 2}, "The minimum of 3 nodes is greater than the maximum, 2."),
        ({"max_restarts": -1}, "max_restarts=-1 is less than 0. Did you mean '0'?"),
        ({"max_restarts": True}, "max_restarts=True is of the type bool, which --max_restarts does not take."),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout=nan is not a number of seconds."),
        ({"rdzv_id": " "}, "rdzv_id is empty."),
        (
            {"nproc_per_node": 2, "tee": StreamMap(by_rank={2: Stream.ALL})},
            "--tee names local rank 2, but with --nproc_per_node=2 the last one is 1.",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_whoever_asks_for_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), **settings)
    assert refused.value.message.startswith(message)
