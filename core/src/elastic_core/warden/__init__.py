"""The warden: a process that is the parent of all workers of a node, and kills every process that they have started.

The process stays small: it imports a part of the standard library, and of core only this package, ``exit_codes`` and
``worker.channel``.

General layout:

* ``main``: the program of the process. ``process``: the process itself. ``spawn`` forks and execs a child, ``stop`` is
  the state of a stop in progress, ``fork_server`` starts the fork server and requests forks, and ``linux`` finds and
  kills processes.
* ``client``: the agent's side: starts the process, sends requests and receives events.
* ``channel``: messages and descriptors over a socket, for both sides. ``messages``: the classes of the events.
"""
