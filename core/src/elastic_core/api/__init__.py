"""Starts an agent, and offers the same from Python.

General layout:

* ``run_agent``: starts the warden, the fork server, the store and the agent, in the order of how long each takes.
* ``launch``: ``elastic_launch``. ``agent``: ``LocalElasticAgent``. ``multiprocessing``: ``start_processes``, ``Std``.
  All have the names of ``torch.distributed``. ``launch_config`` turns their arguments into a run, and
  ``process_failure`` describes a failed process.
"""
