"""The agent: one process per node, which executes what the node's state machine says.

* ``start``: starts the warden, the starter, the store and the agent, in the order of how long each takes.
* ``supervisor``: the one event loop of a node that has joined, and how the node leaves. ``membership``: joins the job,
  runs that loop, and calls the plugins that keep memory for workers at its end. ``event_loop``: the queue of its
  events. ``resources``: what an agent opens at its start and closes at its end. ``directories``: its slot on this host,
  and its log and temporary directories. ``gates``: the plugins' checks before a node joins, and their delay of the
  start of workers.
* ``workers``: the workers of one round, each a ``worker``. ``worker_channels``: the agent's side of the control
  channels. ``worker_store``: the store that a node offers to them.
* ``output``: the workers' streams. ``console`` writes to the terminal.
* ``probing``: the peers that can be reached after a failure, and whether the job has gone on without this node.
* ``report``: the events that people read, and how long a recovery took. ``account``: a record of the run for events,
  for its summary and for the node's row.

No module here decides anything about the job: ``protocol.leader`` and ``protocol.node`` do.
"""

from elastic_core import names_of

NAMES = {
    "agent.console": "write_all",
    "agent.directories": "MARK PREFIX names_free_slot",
    "agent.report": "Ending root_cause",
    "agent.start": "run",
}

__getattr__ = names_of(__name__, NAMES, torchs=True)
