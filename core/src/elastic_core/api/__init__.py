"""Starts an agent, from the command line or from Python.

* ``run_agent``: starts the warden, the fork server, the store and the agent, in the order of how long each takes.
* ``launch``: torch's name ``elastic_launch``.
  ``launch_config`` turns their arguments into a run, and ``process_failure`` describes a failed process.
"""
