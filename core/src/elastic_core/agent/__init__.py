"""The agent: one process per node, between a rendezvous and the workers of that node.

General layout:

* ``supervisor``: the one event loop; ``loop`` is where every event arrives; ``workers`` keeps the books of a round,
  and ``outcome`` words the last thing that a run says. ``assignment`` is one worker's place in a round.
* ``warden_main``: a process of its own and the parent of all workers, so that nothing that they ever start outlives the
  job. ``warden`` is the agent's side of it, ``warden_events`` what it says, ``channel`` how the two talk, ``processes``
  what both know about killing. ``spawning`` forks and execs, ``nursery`` keeps the fork server and its forks,
  ``ending`` is a stop under way. What happens inside the fork server is ``elastic_core.forkserver``.
* ``hands`` makes and unmakes all that; ``preloading`` says what the fork server imports, ``stores`` where the workers'
  store is.
* ``reports``: what workers say over their control channels; ``elastic_core.worker.channel`` is the workers' side of it.
* ``polling`` and ``asker``: the loop for rendezvous handlers of others.
* ``output`` takes the workers' streams to files and, by way of ``console``, to the terminal: ``pump`` reads them,
  ``lines`` cuts them, ``pseudo_terminal`` makes them look like the terminal. ``error_files`` reads what a failed worker
  left to explain itself.
* ``server`` is the agent as an object, for callers in Python; ``calls`` starts workers that are functions.
* ``addresses``, ``ports``, ``identity``: what this host is called, where it can be reached, and what it holds for a
  job.

Nothing here decides about the job: that is the rendezvous's (``rendezvous.decide``, ``rendezvous.node``).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """``server``, as torch calls ``elastic_core.api.agent``; imported when it is first used."""
    if name != "server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("elastic_core.api.agent")
