"""Jobs of ``elastic run`` over rendezvous handlers of others, such as torch's own.

* ``backend`` makes a backend of a handler: a private ledger in this node's memory, which the node itself leads, and the
  thread that calls the handler.
* ``exchange`` is what the agents of a round tell each other through the handler's store.
* ``registry`` finds handlers by the name that ``--rdzv_backend`` gives, and completes those of other classes.
"""
