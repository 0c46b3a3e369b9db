"""Runs a job over a foreign :class:`RendezvousHandler`, which keeps no ledger: as torchrun's agent does.

General layout:

* ``agent``: the event loop of such a node. It shares resources, workers and reports with ``elastic_core.agent``.
* ``state_machine``: what the node does next, as a pure function.
* ``thread``: the thread that calls the handler, since its calls take long.
* ``exchange``: what the nodes of a round tell each other through the handler's store.
* ``status``: what the agent is waiting for, in words.
"""
