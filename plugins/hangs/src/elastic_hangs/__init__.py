"""Hangs of Elastic jobs: notices them, shows which rank the others wait for and at which line, and may end it.

General layout:

* ``monitor``: the plugin in an agent, which watches each round. ``flags``: its flags. ``watch``: notices workers
  without progress. ``processes``: facts from /proc about them.
* ``judgement``: whether ranks hang, and which one the others wait for, from the answers of all nodes.
* ``stacks``: where workers are, which they say themselves, or ``py_spy`` reads from outside.
* ``command``: ``elastic stacks``. ``request``: asks the nodes of a job over its store. ``local_ranks``: where the ranks
  of this host are, for a job without a store.
"""

from __future__ import annotations

__version__ = "0.1.0"
