"""What runs inside a worker. It imports no agent, session or command line; tests hold that.

General layout:

* ``channel``: the worker's side of its control channel. ``graceful_stop`` reports steps and learns of planned stops
  over it, and ``fd_store`` leaves memory files with the agent.
* ``progress``: ``elastic.report``.
* ``failure_recorder``: writes down the exception that ends a worker, whatever program it runs. ``error_file``:
  ``@record``, which does so for one function, as torch's does. ``stack_dump``: writes the Python stacks of the worker's
  threads when the agent asks for them. ``outside_signals``: reports the signals that the program handles.
* ``function``: workers that are Python functions rather than programs.
* ``library``: finds the library that brings ``TrainState`` and ``init_process_group``. ``train_state``: the interface
  of ``TrainState``.
"""
