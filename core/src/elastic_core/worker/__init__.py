"""The part of core that runs inside a worker. It imports no agent, session or command line; tests hold that.

* ``channel``: the worker's side of its control channel. ``graceful_stop`` reports steps and learns of planned stops
  over it.
* ``progress``: ``elastic.report``.
* ``error_file``: ``@record``, which a script may use, and the file that it writes.
* ``library``: finds the library that brings ``TrainState`` and ``init_process_group``. ``train_state``: the interface
  of ``TrainState``.
"""

from elastic_core import names_of

NAMES = {
    "worker.channel": "INITIALIZED KIND LONGEST open_channel report wait_until_ready",
    "worker.error_file": "ERROR_FILE MEMBER NO_MESSAGE as_torchs attach error_data message_of read_error_file record "
    "with_exit_code write_error_file",
    "worker.graceful_stop": "should_checkpoint somebody_leaves",
    "worker.train_state": "TrainingState",
}

__getattr__ = names_of(__name__, NAMES)
