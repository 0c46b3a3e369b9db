"""The fork server: an interpreter that has imported torch already, and forks workers in milliseconds.

General layout:

* ``starter``: what core calls at the start of a launch (``elastic_core.starter``). ``flags``: the flags that it reads.
* ``server``: imports, reports, and forks twice per request. It is called just before an interpreter turns to the
  program of a worker. A worker forked from it returns from that call, and the interpreter continues: it computes
  ``sys.path[0]``, fills ``__main__``, runs the program, prints what it raises, and exits. So no second implementation
  of all this is needed, and no frame of ours is below the program's.
* ``child``: what a fork changes about itself to become the worker that was requested. ``title``: what other
  users see of it. ``huge_pages`` makes forks cheap.
* ``checks``: whether a worker may be forked, as a pure function over facts. ``facts`` collects these.
  ``source_files``: whether an imported module has changed on disk.
* ``libraries``: the state of torch, numpy and others that a fork must not share: random states, threads, keys.
* ``import_record``: which modules a worker imports. ``learned_imports`` has the successor of the fork server import
  them, each tried in a throwaway fork first (``trial_fork``, ``process_state``), and only modules of libraries
  (``library_modules``).
* ``worker_store``: the workers' store of a round, a service that the fork server forks.
* ``init_probe``: reports to the agent that the process group is ready; the script needs no change.

The agent imports only ``starter`` and ``flags``.
"""

from __future__ import annotations

__version__ = "0.1.0"
