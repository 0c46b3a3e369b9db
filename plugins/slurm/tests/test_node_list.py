"""Node lists as Slurm writes them, expanded without ``scontrol``."""

from __future__ import annotations

import pytest

from elastic_core.errors import UsageError
from elastic_slurm.allocation import counts, expand


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param("node0", ["node0"], id="one node"),
        pytest.param("node[0-3]", ["node0", "node1", "node2", "node3"], id="a range"),
        pytest.param("node[0,2-3]", ["node0", "node2", "node3"], id="a gap: a heterogeneous job's step"),
        pytest.param("node[08-11]", ["node08", "node09", "node10", "node11"], id="leading zeros"),
        pytest.param("node[098-101]", ["node098", "node099", "node100", "node101"], id="zeros that end"),
        pytest.param("node[9-11]", ["node9", "node10", "node11"], id="no leading zeros"),
        pytest.param("a1,b2", ["a1", "b2"], id="names that have nothing in common"),
        pytest.param("jean-zay-iam[17,21-22]", ["jean-zay-iam17", "jean-zay-iam21", "jean-zay-iam22"], id="dashes"),
        pytest.param(
            "r[1-2]i0n[0-1]", ["r1i0n0", "r1i0n1", "r2i0n0", "r2i0n1"], id="two brackets: the last is fastest"
        ),
        pytest.param(
            "gpu-[01-02].cluster.example", ["gpu-01.cluster.example", "gpu-02.cluster.example"], id="a suffix"
        ),
        pytest.param(
            "queue1-dy-p4d24xlarge-[1-2],queue1-st-p4d24xlarge-1",
            ["queue1-dy-p4d24xlarge-1", "queue1-dy-p4d24xlarge-2", "queue1-st-p4d24xlarge-1"],
            id="AWS ParallelCluster",
        ),
        pytest.param("nid[001036-001037,001040]", ["nid001036", "nid001037", "nid001040"], id="Cray"),
        pytest.param("ip-10-0-0-[5-6]", ["ip-10-0-0-5", "ip-10-0-0-6"], id="addresses in names"),
        pytest.param("lassen[3],n[1-1]", ["lassen3", "n1"], id="brackets around one number"),
    ],
)
def test_a_node_list_is_expanded(text: str, nodes: list[str]) -> None:
    assert expand(text) == tuple(nodes)


@pytest.mark.parametrize(
    "text", ["", "node[", "node]", "node[1-", "node[]", "node[a-b]", "node[3-1]", "a,,b", "n[[1]]"]
)
def test_a_text_that_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no list of nodes as Slurm writes them"):
        expand(text)


def test_a_list_of_too_many_nodes_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(UsageError, match="has more than 65536 nodes"):
        expand("r[0-9999]n[0-9999]")


@pytest.mark.parametrize(
    ("text", "numbers"), [("1", [1]), ("1(x4)", [1] * 4), ("2(x2),1", [2, 2, 1]), ("72(x2),36", [72, 72, 36])]
)
def test_a_list_of_counts_is_expanded(text: str, numbers: list[int]) -> None:
    assert counts(text) == tuple(numbers)


@pytest.mark.parametrize("text", ["", "x", "2(x", "2(x3", "-1"])
def test_a_text_that_is_no_list_of_counts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no list of numbers as Slurm writes them"):
        counts(text)
