from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from elastic_core.config import parse as values
from elastic_core.config.parse import NodeRange, OnNodeLoss, Stream, StreamMap, Wrong

NO_NODES = "is not a number of nodes, N, a range of them, MIN:MAX or MIN:MAX:STEP, or a list of sizes, 4,6,8"


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.node_range, "4", NodeRange(4, 4)),
        (values.node_range, "1:4", NodeRange(1, 4)),
        (values.node_range, "3:3", NodeRange(3, 3)),
        (values.node_range, "4,6,8", NodeRange(4, 8, (4, 6, 8))),
        (values.node_range, "8,4,8", NodeRange(4, 8, (4, 8))),
        (values.node_range, "2:8:2", NodeRange(2, 8, (2, 4, 6, 8))),
        (values.node_range, "2:8:1", NodeRange(2, 8)),
        (values.node_range, "3,2,4", NodeRange(2, 4)),
        (values.node_range, "4:4:2", NodeRange(4, 4)),
        (values.workers, "8", 8),
        (values.workers, "gpu", "gpu"),
        (values.signals, "term, SIGUSR1,TERM", (signal.SIGTERM, signal.SIGUSR1)),
        (values.ranks, "0, 12", frozenset({0, 12})),
        (values.ranks, "", None),
        (values.count_from_zero, "0", 0),
        (values.seconds, "0", 0.0),
        (values.seconds, "1.5", 1.5),
        (values.not_empty, "trainer", "trainer"),
        (values.address, "node-1.example", "node-1.example"),
        (values.address, "10.0.0.1", "10.0.0.1"),
        (values.address, "fe80::1%eth0", "fe80::1%eth0"),
        (values.address, "[::1]", "::1"),
        (values.names, "one, two three,", ("one", "two", "three")),
        (values.names, "", ()),
        (values.on_node_loss, "fail", OnNodeLoss.FAIL),
        (values.stream_map, "3", StreamMap(default=Stream.ALL)),
        (values.stream_map, "0:3,12:1", StreamMap(by_rank={0: Stream.ALL, 12: Stream.OUT})),
        (values.stream_map, "1024:2", StreamMap(by_rank={1024: Stream.ERR})),
    ],
)
def test_a_value_is_read(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "reason", "suggestion"),
    [
        (values.node_range, "4:2", "has a minimum, 4, greater than its maximum, 2", " Did you mean '2:4'?"),
        (values.node_range, "0", "has fewer than 1 node", " Did you mean '1'?"),
        (values.node_range, "0:4", "has fewer than 1 node", " Did you mean '1:4'?"),
        (values.node_range, "-1", "has fewer than 1 node", " Did you mean '1'?"),
        (values.node_range, "2:-1", "has a minimum, 2, greater than its maximum, -1", ""),
        (values.node_range, "", NO_NODES, ""),
        (values.node_range, "1:2:3:4", NO_NODES, ""),
        (values.node_range, "1_0", NO_NODES, ""),
        (values.node_range, "2:8:0", "has a step of 0, which is less than 1", " Did you mean '2:8'?"),
        (values.node_range, "2:9:2", "does not reach its maximum, 9, in steps of 2 from 2", " Did you mean '2:8:2'?"),
        (values.node_range, "1:2:3", "does not reach its maximum, 2, in steps of 3 from 1", ""),
        (values.node_range, "4,", "is not a list of numbers of nodes, such as 4,6,8", ""),
        (values.node_range, "4,-6", "is not a list of numbers of nodes, such as 4,6,8", ""),
        (values.node_range, "1:2,4", "is not a list of numbers of nodes, such as 4,6,8", ""),
        (values.node_range, "0,4", "has fewer than 1 node", ""),
        (values.node_range, "2:1024:2", "has 512 sizes; 256 are allowed", ""),
        (values.workers, "4x", "is not a whole number", ""),
        (values.port, "65536", "is greater than 65535, the last port", ""),
        (values.start_method, "spwan", "is none of spawn, fork, forkserver", " Did you mean 'spawn'?"),
        (values.start_method, "thread", "is none of spawn, fork, forkserver", ""),
        (values.signals, "SIGTEMR", "has 'SIGTEMR', which is no signal", " Did you mean 'SIGTERM'?"),
        (values.signals, "SIGKILL", "has SIGKILL, which cannot be handled", ""),
        (values.signals, ",", "names no signal", " Did you mean 'SIGTERM,SIGINT'?"),
        (values.ranks, "0,x", "has 'x', which is not a local rank", ""),
        (values.workers, "1.5", "is not a whole number", ""),
        (values.workers, "٣", "is not a whole number", ""),
        (values.workers, "0", "is less than 1", " Did you mean '1'?"),
        (values.count_from_zero, "-1", "is less than 0", " Did you mean '0'?"),
        (values.seconds, "soon", "is not a number of seconds", ""),
        (values.seconds, "nan", "is not a number of seconds", ""),
        (values.seconds, "inf", "is not a number of seconds", ""),
        (values.seconds, "-3", "is less than 0 seconds", " Did you mean '0'?"),
        (values.positive_seconds, "0", "is not more than 0 seconds", ""),
        (values.positive_seconds, "-1", "is less than 0 seconds", " Did you mean '0'?"),
        (values.not_empty, " ", "is empty", ""),
        (values.address, "", "is empty", ""),
        (values.address, "999.1.1.1", "is not an IP address", ""),
        (values.address, "10.0.0", "is not an IP address", ""),
        (values.address, "node:29500", "has a port, and no port is meant", " Did you mean 'node'?"),
        (values.address, "[::1]:29500", "has a port, and no port is meant", " Did you mean '::1'?"),
        (values.address, "a host", "is neither a host's name nor an IP address", ""),
        (values.address, "fe80:::1", "is not an IP address", ""),
        (values.on_node_loss, "repalce", "is neither replace nor fail", " Did you mean 'replace'?"),
        (values.on_node_loss, "7", "is neither replace nor fail", ""),
        (
            values.stream_map,
            "4",
            "has '4' for streams, which is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)",
            "",
        ),
        (
            values.stream_map,
            "0:3,1:7",
            "has '7' for streams, which is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)",
            "",
        ),
        (values.stream_map, "0:3,x:1", "has 'x:1', which is not RANK:STREAMS", ""),
        (values.stream_map, "0:3,", "has '', which is not RANK:STREAMS", ""),
        (values.stream_map, "0:3,0:1", "names rank 0 twice", ""),
    ],
)
def test_a_nonsensical_value_is_refused(
    parse: Callable[[str], object], text: str, reason: str, suggestion: str
) -> None:
    with pytest.raises(Wrong) as refused:
        parse(text)
    assert (str(refused.value), refused.value.suggestion) == (reason, suggestion)


@pytest.mark.parametrize("text", ["4", "1:4", "4,6,8", "4,8", "2:8:2", "8:2048:8", "1,2,4,8"])
def test_sizes_are_shown_as_the_flag_takes_them(text: str) -> None:
    assert str(values.node_range(text)) == text
