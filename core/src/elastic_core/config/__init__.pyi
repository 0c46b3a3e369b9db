# Made by docs/render_public.py.

from elastic_core.config.environment import flag_variable as flag_variable, inheritable as inheritable, threads as threads
from elastic_core.config.flag import Flag as Flag, flags_in as flags_in
from elastic_core.config.program import Program as Program, ProgramKind as ProgramKind, arguments_digest as arguments_digest, interpreter as interpreter, name as name, python_program as python_program
from elastic_core.config.rdzv_conf import LOCAL as LOCAL, NUMBERED as NUMBERED, RendezvousConf as RendezvousConf, SHUTDOWN_VARIABLE as SHUTDOWN_VARIABLE, check_nodes as check_nodes, parse_conf as parse_conf, scheduler_uid as scheduler_uid, settle as settle, shutdown_timeout as shutdown_timeout
from elastic_core.config.run import DEFAULT_ID as DEFAULT_ID, EXIT_BARRIER as EXIT_BARRIER, FLAGS as FLAGS, Flags as Flags, LINE_PREFIX as LINE_PREFIX, MAX_RESTARTS as MAX_RESTARTS, MONITOR_INTERVAL as MONITOR_INTERVAL, PlainSettings as PlainSettings, RunConfig as RunConfig, Timing as Timing

NAMES: dict[str, str]
