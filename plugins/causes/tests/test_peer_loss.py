"""The texts of a worker that has lost a peer."""

from __future__ import annotations

import pytest

from elastic_causes.find import is_peer_loss

GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
)
DISTRIBUTED = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
STORE = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."


@pytest.mark.parametrize(
    ("text", "origin", "follows"),
    [
        pytest.param(GLOO, "", True, id="gloo"),
        pytest.param("RuntimeError: Gloo connectFullMesh failed with …", "", True, id="gloo did not connect"),
        pytest.param("DistNetworkError: failed to recv, got 0 bytes", "train.py", False, id="of nobody knows whom"),
        pytest.param("DistNetworkError: failed to recv, got 0 bytes", DISTRIBUTED, True, id="torch's frames"),
        pytest.param(STORE, "", True, id="TCPStore"),
        pytest.param("DistBackendError: NCCL communicator was aborted on rank 1.", "", True, id="NCCL"),
        pytest.param("terminate called\n  what(): NCCL error: remote process exited", "", True, id="NCCL's watchdog"),
        pytest.param(
            "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send",
            "",
            True,
            id="monitored_barrier",
        ),
        pytest.param("RuntimeError: Timed out waiting 1800000ms for recv operation", DISTRIBUTED, True, id="no answer"),
        pytest.param("BrokenPipeError: [Errno 32] Broken pipe", "train.py\nqueues.py", False, id="a pipe of its own"),
        pytest.param("ConnectionResetError: [Errno 104] Connection reset by peer", "", False, id="a socket of its own"),
        pytest.param("RuntimeError: metrics server: Socket Timeout", "metrics.py", False, id="a service of its own"),
        pytest.param("ValueError: nan", DISTRIBUTED, False, id="its own"),
    ],
)
def test_a_peers_loss_is_a_text_of_it_that_comes_from_a_collective(text: str, origin: str, follows: bool) -> None:
    assert is_peer_loss(text, origin) is follows
