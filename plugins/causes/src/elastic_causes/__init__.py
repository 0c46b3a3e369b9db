"""elastic-causes: finds why a worker failed, from the exception that it records, its stderr, and facts of its host.

* ``plugin``: the plugin in an agent.
* ``failure_recorder``: records in a worker the exception that ends it; every Python worker executes this file.
* ``find``: the cause, from that record, or from stderr where there is none.
* ``frames``: the frames of a printed stack. ``tracebacks``: the tracebacks that a console shows in one line.
* ``evidence``: facts beyond the worker's own report: a wrong address, a taken port, core dumps. ``oom``: whether the
  kernel has killed a process for memory.
"""

__version__ = "0.1.0"
