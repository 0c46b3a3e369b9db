"""The fork server: an interpreter that has imported torch already, and forks workers in milliseconds.

General layout:

* ``startup/sitecustomize``: enters the start of an interpreter. The fork server is ``python -u train.py args``, word
  for word the command of a fresh worker. ``site`` imports our ``sitecustomize`` just before the interpreter turns to
  the program, and there the fork server stays. A worker forked from it returns from that import, and the interpreter
  continues: it computes ``sys.path[0]``, fills ``__main__``, runs the program, prints what it raises, and exits. So no
  second implementation of all this is needed, and no frame of ours is below the program's.
* ``server``: imports, reports, and forks twice per request. ``child``: what a fork changes about itself to become the
  worker that was requested. ``huge_pages`` makes forks cheap.
* ``checks``: whether a worker may be forked, as a pure function over facts. ``facts`` collects these.
  ``source_files``: whether an imported module has changed on disk.
* ``libraries``: the state of torch, numpy and others that a fork must not share: random states, threads, keys.
* ``import_record``: which modules a worker imports. ``learned_imports`` has the successor of the fork server import
  them, each tried in a throwaway fork first (``trial_fork``, ``process_state``), and only modules of libraries
  (``library_modules``).
* ``service``: a service in a fresh interpreter, if the fork server must not fork it.
  ``worker_store``: the workers' store, the one service that there is.
* ``init_probe``: reports to the agent that the process group is ready; the script needs no change.

The agent imports none of this. The warden's side is ``elastic_core.warden.fork_server``.
"""
