"""What is installed, which plugins a run asks, and how foreign code is called without harm to the job.

General layout:

* ``entry_points``: finds installed plugins. ``manager``: loads and calls those of a run.
* ``failure_policies``: asks all policies about an incident, with a time limit. ``observers``: delivers events to
  plugins without waiting for them.
* ``builtin``: core's own plugins. ``local_backend``: the backend for one node.
* ``handler_registry``: finds foreign rendezvous handlers by name.
"""
