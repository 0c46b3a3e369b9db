"""The settings of a run, and every environment variable.

* ``run``: core's flags, and :class:`~elastic_core.config.run.RunConfig`, one frozen record. ``flag``: how a flag is
  declared. ``program``: what the workers run.
* ``parse``: reads the values of flags and settings from text. ``rdzv_conf``: the settings of ``--rdzv_conf``.
* ``environment``: each environment variable that Elastic reads or sets.
"""

from elastic_core import names_of

NAMES = {
    "config.environment": "flag_variable inheritable threads",
    "config.flag": "Flag flags_in",
    "config.program": "Program ProgramKind arguments_digest interpreter name python_program",
    "config.rdzv_conf": "LOCAL NUMBERED RendezvousConf SHUTDOWN_VARIABLE check_nodes parse_conf "
    "scheduler_uid settle shutdown_timeout",
    "config.run": "DEFAULT_ID EXIT_BARRIER FLAGS Flags LINE_PREFIX MAX_RESTARTS MONITOR_INTERVAL PlainSettings "
    "RunConfig Timing",
}

__getattr__ = names_of(__name__, NAMES)
