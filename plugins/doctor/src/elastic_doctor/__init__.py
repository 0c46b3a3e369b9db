"""``elastic doctor``: whether nodes can meet at an endpoint, tried from this host, and in plain words what is wrong.

General layout, from the command line down to one check:

* ``command``: ``elastic doctor`` itself: its flags, those of ``elastic run``, and what it prints.
* ``findings``: what one check has come to, as text and as JSON.
* ``host``: checks of this host: the address that it would advertise, names, limits, what is installed.
* ``store``: checks of a store: every operation that the protocol needs, on a job id that no job uses, and whether a
  heartbeat and a wake-up are fast enough.
* ``examination``: the checks in their order. What depends on something that is wrong is not tried.
* ``runner``: runs an examination in a process of its own, so that it cannot hang and leaves nothing in the store.

The checks know nothing of processes, deadlines or terminals; they return findings, or raise our own errors.
"""

__version__ = "0.1.0"
