"""The ``c10d`` rendezvous backend: torch's TCPStore, embedded in one of the job's agents. No server to run.

General layout, from the command line down to the wire:

* ``plugin``: the hooks that core calls: what the backend takes, and how its first connection is made.
* ``static``: the backend ``static``, whose nodes are numbered by hand.
* ``endpoint``: whether the store belongs on this host, and the search for the agent that hosts it elsewhere.
* ``server``: the process that holds the store, and that ends with the agent that started it.
* ``backend``: roster and ledger on top of a key-value store. Here is the protocol of keys.
* ``records``: the names of the keys, and the bytes that they hold.
* ``client``: one connection, with every wait bounded and every error one of ours.
* ``quiet_torch``: the one import of torch, on a single thread, leaving the environment as it was.

Importing this package, or ``plugin``, imports no torch; making the backend does.
"""

__version__ = "0.1.0"
