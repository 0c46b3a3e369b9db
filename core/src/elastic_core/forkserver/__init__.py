"""Warm workers: an interpreter that has imported torch already, and forks a worker in milliseconds.

General layout:

* ``startup/sitecustomize``: how we get into an interpreter's start. The fork server is ``python -u train.py args``,
  word for word what a fresh worker is; ``site`` imports our ``sitecustomize`` just before the interpreter would turn
  to the program, and there the fork server stays. A worker forked from it returns from that import, and the
  interpreter goes on as it always does: it computes ``sys.path[0]``, fills ``__main__``, runs the program, prints what
  it raises, and exits. So there is no second implementation of all this, and no frame of ours below the program's.
* ``fork_server``: what happens there: import, tell, fork twice on request. ``pages`` makes a fork cheap.
* ``checks``: whether a worker may be forked at all, a pure function over facts; ``facts`` collects these.
* ``child``: what a fork must change about itself to be the worker that was asked for.
* ``libraries``: what torch, numpy and others hold that a fork must not share: random states, threads, keys.
* ``record``: which modules a worker imports. ``learning`` has the fork server's successor import them, each tried in a
  throwaway fork first (``trial``, ``process_state``), and only those of libraries (``modules``).
* ``sources``: whether what was imported has changed on disk since.
* ``service``: a service that starts as an interpreter of its own, where the fork server must not fork it.
* ``initialization``: how a script that knows nothing of it tells its agent that the process group is there.

None of this is imported by the agent; the warden's side of it is ``elastic_core.warden.fork_server``.
"""
