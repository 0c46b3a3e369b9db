"""The fork server: an interpreter that has imported torch already, and forks workers in milliseconds.

* ``starter``: what core calls at the start of a launch (``elastic_core.starter``). ``flags``: the flags that it reads.
* ``server``: imports, reports, and forks twice per request. It is called just before an interpreter turns to the
  program of a worker. A worker forked from it returns from that call, and the interpreter continues: it computes
  ``sys.path[0]``, fills ``__main__``, runs the program, prints what it raises, and exits. So no second implementation
  of all this is needed, and no frame of ours is below the program's.
* ``child``: what a fork changes about itself to become the worker that was requested. ``process``: what other users
  see of it, and what makes forks cheap.
* ``checks``: whether a worker may be forked, as a pure function over facts of this process.
* ``libraries``: the state of torch, numpy and others that a fork must not share: random states, threads, keys. It also
  reports to the agent that the process group is ready; the script needs no change.
* ``learned_imports``: records which modules a worker imports, and has the successor of the fork server import them,
  each tried in a throwaway fork first, and only modules of libraries. ``library_modules``: which those
  are, and whether the file of an imported module has changed.
* ``worker_store``: the workers' store of a round, a service that the fork server forks.

The agent imports only ``starter`` and ``flags``.
"""

__version__ = "0.1.0"
