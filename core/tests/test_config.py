from __future__ import annotations

import pytest

from elastic_core.config import Stream, StreamMap, Timing
from elastic_core.errors import UsageError


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({"join_timeout": 0.0}, "--rdzv_conf join_timeout=0 is not a positive number of seconds."),
        ({"beat_interval": -1.0}, "--rdzv_conf beat_interval=-1 is not a positive number of seconds."),
        ({"last_call_timeout": -0.5}, "--rdzv_conf last_call_timeout=-0.5 is not a positive number of seconds."),
        ({"fence_after": float("nan")}, "--rdzv_conf fence_after=nan is not a positive number of seconds."),
        ({"lost_after": 3.0}, "--rdzv_conf lost_after=3 is less than two beats of 2 s."),
    ],
)
def test_a_duration_that_cannot_be_is_refused_by_name_and_value(durations: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Timing(**durations)
    assert refused.value.message == message


def test_the_last_call_may_be_left_out() -> None:
    assert Timing(last_call_timeout=0.0).last_call_timeout == 0


def test_ranks_that_a_map_does_not_name_have_its_default() -> None:
    streams = StreamMap(default=Stream.OUT, by_rank={12: Stream.ALL})
    assert [streams[0], streams[12]] == [Stream.OUT, Stream.ALL]
