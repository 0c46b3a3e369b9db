"""The ``etcd`` and ``etcd-v2`` rendezvous backends: a store that outlives any node.

General layout, from the command line down to the wire:

* ``plugin`` and ``plugin_v2``: the hooks that core calls: what each backend takes, and its first connection.
* ``options``: reading ``HOST[:PORT][,HOST[:PORT]…]``, ``--rdzv_conf`` and the environment: credentials, certificates,
  limits of time.
* ``backend``: roster and ledger on API v3: its keys, and one transaction for each thing that must not come apart.
* ``backend_v2``: the same on API v2, which changes one key at a time.
* ``connection``: where the members are, and one connection to whichever answers, with every wait bounded; ``client``:
  one over API v3, and its watches, to each of which a thread listens.
* ``gateway``: one socket to one member: JSON out, JSON or a stream of it back, or an error.
* ``client_v2``: python-etcd, kept to one member at a time and to errors of ours.
* ``torchrun``: the same for plain ``torchrun --rdzv_backend=elastic-etcd``.
* ``sidecar`` and ``sidecar_main``: an etcd of this agent's own, for ``--standalone``.

Importing this package, or its hooks, imports neither an HTTP client nor python-etcd; making a backend does.
"""

__version__ = "0.1.0"
