"""The threads that connect a node to its store, and everything else that reads and writes a store.

General layout, from what a node does first to what it does last:

* ``runtime`` is what all of it runs on: clock, threads, codec. A simulator passes its own.
* ``join`` finds or opens the run and enters the roster; ``arrival`` says which run a node belongs to, and
  ``ledger_watch`` follows that run while the starter imports. ``living_hosts`` finds out which nodes of a run are
  alive.
* ``session`` makes the threads of a node that takes part. They do not know each other, and meet in ``state``:
  ``reader`` waits for the ledger to grow and posts what is new, and while this node leads, waits for the roster too
  and takes the turns of ``leader_driver``; ``row_writer`` keeps the roster row up to date, and does rare jobs;
  ``heartbeat`` says that the node is alive.
* ``connections`` makes their connections and finds calls without an answer, ``contact`` says since when there has been
  none, and how long to wait before the next attempt.
* ``ledger_reader`` reads entries and rows, ``repair`` puts back entries that a store has lost, ``row_check`` finds out
  whether the leader can read the node's row.
* ``leave`` gives the leadership away and takes the row out. ``verdict_event`` is the event of a verdict on a failure.
  ``summary`` has plugins sum up the answers to a question. ``decision_log`` keeps decisions for a bug report.
* ``job_request`` enters a request from outside of the job.
"""

from __future__ import annotations

from elastic_core import names_of

NAMES = {
    "session.contact": "FENCE_SHARE FIRST_CONNECTION_SECONDS connect_at_first is_gone persist silence_told "
    "silent_store store_awaited",
    "session.job_request": "requested require_agent running_job",
    "session.ledger_reader": "load news peek readable",
    "session.runtime": "RUNTIME Runtime",
    "session.session": "Session",
    "session.state": "SessionCalls",
}

__getattr__ = names_of(__name__, NAMES)
