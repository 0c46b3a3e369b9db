"""The warden: a process that is the parent of all workers of a node, and kills every process that they have started.

The process stays small. It may import the standard library, ``exit_codes``, ``host.processes``, ``worker.channel``, and
the modules below except ``client`` and ``messages``; a test holds the list.

* ``process``: the process itself. ``spawn`` forks and execs a child, and has a Python program import our
  ``sitecustomize`` first. ``stop`` is the state of a stop in progress and knows the processes that outlive their
  workers, ``starter`` starts the starter and requests forks, and ``linux`` has subreapers and signals. ``service``: the
  program of a service that starts fresh.
* ``client``: the agent's side: starts the process, sends requests and receives events.
* ``channel``: messages and descriptors over a socket, for both sides. ``messages``: the classes of the events.
"""

from elastic_core import names_of

NAMES = {
    "warden.channel": "Channel Message close_all",
    "warden.client": "CLOSING SpawnRequest Warden",
    "warden.linux": "become_subreaper die_once_adopted die_with_parent ignore_requests_to_end kill signal_group "
    "subreaping",
    "warden.messages": "Exited SpawnFailed Spawned StopCompleted Stuck WardenDied WardenEvent",
    "warden.spawn": "take_descriptors volunteer_for_oom",
}

__getattr__ = names_of(__name__, NAMES)
