"""Commands for operators of a running job: ``elastic status``, ``logs``, ``drain`` and ``release``.

General layout:

* ``status``: ``elastic status``: nodes, ranks and restarts of a job.
* ``host_requests``: ``elastic drain`` and ``elastic release``: requests about a host to the agents of a job.
* ``logs``: ``elastic logs``: the workers' output that was kept.

``elastic stacks`` is a command of core.
"""

from __future__ import annotations

__version__ = "0.1.0"
