"""The contract of :class:`~elastic_core.rendezvous.backend.RendezvousBackend`, as tests.

A backend's author subclasses :class:`BackendConformance` and says how a connection is made::

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def make_backend(self, my_server):
            return lambda run_id: MyBackend(my_server.address, run_id)

A store that several processes can reach also passes :class:`ProcessConformance`, which wants one fixture more. Each
suite asks only for the fixtures that its own tests need, so one with further demands is a further class beside these.
"""

from __future__ import annotations

from elastic_core.testing.ledger_suite import JobConformance, LedgerConformance
from elastic_core.testing.process_suite import ProcessConformance
from elastic_core.testing.roster_suite import BeatConformance, RosterConformance
from elastic_core.testing.wait_suite import WaitConformance

__all__ = ["BackendConformance", "ProcessConformance"]


class BackendConformance(LedgerConformance, RosterConformance, BeatConformance, WaitConformance, JobConformance):
    """What every backend must pass. Override the fixture ``make_backend``: a function from a run id to a connection."""
