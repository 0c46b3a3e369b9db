"""The threads that connect a node to its store, and everything else that reads and writes a store.

General layout, from what a node does first to what it does last:

* ``runtime`` is what all of it runs on: clock, threads, codec. A simulator passes its own.
* ``join`` finds or opens the run, enters the roster, and follows the run of a node that has yet to join.
  ``ledger_reader`` reads entries and rows.
* ``session`` makes the threads of a node that takes part, and ends them. They meet in ``state``, which has their
  connections and the writer of the node's row. ``reader`` waits for the ledger to grow and posts new entries; it puts
  back entries that a store has lost. While this node leads, it also waits for the roster and takes the turns of
  ``leader_driver``, which asks plugins. ``heartbeat`` shows that the node lives, and that its row is read.
* ``contact`` says since when the store has not answered, and how long to wait before the next attempt.
"""

from elastic_core import names_of

NAMES = {
    "session.contact": "FENCE_SHARE FIRST_CONNECTION_SECONDS StoreWait",
    "session.ledger_reader": "load news peek readable",
    "session.runtime": "RUNTIME Runtime",
    "session.session": "Session",
    "session.state": "SessionCalls",
}

__getattr__ = names_of(__name__, NAMES)
