"""Hangs of Elastic jobs: notices them, shows which rank the others wait for and at which line, and may end it.

* ``monitor``: the plugin in an agent, which watches each round. ``flags``: its flags. ``watch``: notices workers
  without progress.
* ``judgement``: whether ranks hang, and which one the others wait for, from the answers of all nodes.
* ``stacks``: where workers are, which they say themselves, or py-spy reads from outside. ``stack_dump``: has a worker
  write its stacks when it is asked; every Python worker executes this file.
* ``command``: ``elastic stacks``. ``lookup``: asks the nodes of a job over its store, or looks on this host.
"""

__version__ = "0.1.0"
