"""The contract of :class:`~elastic_core.rendezvous.backend.RendezvousBackend`, as tests.

A backend's author subclasses :class:`BackendConformance` and says how a connection is made::

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def make_backend(self, my_server):
            return lambda run_id: MyBackend(my_server.address, run_id)

The other suites ask for one fixture more each, or two, for what they do to the store:

* :class:`ProcessConformance` races processes, for a store that several can reach: ``opener``.
* :class:`LineConformance` loses requests and replies, at every step: ``line``, made of a
  :class:`~elastic_testing.faults.LossyProxy` or :class:`~elastic_testing.faults.LossyCalls`.
* :class:`HeldLineConformance` holds them, on one connection or on all, and lets them pass later: ``line``.
  :class:`SilentLineConformance` is the same for a store that is reached over TCP: its operations must end by a timeout.
* :class:`RestartConformance` restarts a store that lives on its own (not an embedded one), with its data, an older copy
  of it, and nothing: ``keeper``.
* Each of these three also checks that the calls of several processes are linearizable, as far as the contract asks.
* :class:`PlantConformance` writes past the backend: ``plant`` and ``plant_row``.
"""

from __future__ import annotations

from elastic_testing.line_suite import (
    HeldLineConformance as HeldLineConformance,
    LineConformance as LineConformance,
    SilentLineConformance as SilentLineConformance,
)
from elastic_testing.operation_suite import (
    HeartbeatConformance,
    JobConformance,
    LedgerConformance,
    RosterConformance,
    WaitConformance,
)
from elastic_testing.process_suite import ProcessConformance as ProcessConformance
from elastic_testing.restart_suite import RestartConformance as RestartConformance
from elastic_testing.run_suite import PlantConformance as PlantConformance, RunConformance


class BackendConformance(
    LedgerConformance, RosterConformance, HeartbeatConformance, WaitConformance, JobConformance, RunConformance
):
    """Tests of every backend. Override the fixture ``make_backend``: a function from a run id to a connection."""
