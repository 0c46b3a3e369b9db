"""What runs inside a worker. It imports no agent, session or command line; tests hold that.

General layout:

* ``channel``: the worker's side of its control channel. ``graceful_stop`` reports steps and learns of planned stops
  over it, and ``fd_store`` leaves memory files with the agent.
* ``progress``: ``elastic.report``.
* ``failure_recorder``: records the exception that ends a worker, whatever script it runs. ``error_file``: ``@record``,
  which a script may use besides. ``stack_dump``: writes the Python stacks of the worker's threads when the agent asks
  for them.
* ``library``: finds the library that brings ``TrainState`` and ``init_process_group``. ``train_state``: the interface
  of ``TrainState``.
"""
