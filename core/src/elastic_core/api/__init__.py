"""Starts an agent, from the command line or from Python.

* ``run_agent``: starts the warden, the fork server, the store and the agent, in the order of how long each takes.

torch's names for this are in elastic-torchrun.
"""
