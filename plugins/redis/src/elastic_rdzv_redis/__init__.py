"""The ``redis`` rendezvous backend: roster and ledger in a Redis or Valkey server, which outlives any node.

General layout, from the command line down to the wire:

* ``plugin``: the hooks that core calls: what the backend takes, and how its first connection is made.
* ``options``: reading ``HOST[:PORT]``, ``redis://``, ``rediss://``, ``unix://``, and ``--rdzv_conf``; credentials, and
  where they come from.
* ``connect``: from an endpoint to a connection: names, sentinels, TLS, and whether the server will do; with every wait
  bounded and every error one of ours.
* ``backend``: roster and ledger on top of a few keys. Here is what they hold.
* ``scripts``: what the server does in one atomic step each.
* ``torchrun``: the same for plain ``torchrun --rdzv_backend=redis``.

Importing this package, or ``plugin``, does not import redis-py; making the backend does.
"""

__version__ = "0.1.0"
