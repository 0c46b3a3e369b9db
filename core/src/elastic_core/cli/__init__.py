"""The command line: ``elastic run``, the commands that look at a running job, and those that plugins add.

General layout:

* ``main``: the entry point. ``commands``: finds the subcommand that is called, and imports only that. ``errors``:
  prints all errors. ``interrupt``: Ctrl-C before there is anything to clean up.
* ``run_command``: the command ``elastic run`` and its help. ``option``: click's options, made of flags. ``run``: runs
  a job. ``settle``: turns the values of flags into a :class:`~elastic_core.config.run.RunConfig`, with ``scheduler``
  (defaults inside a scheduler's job).
* ``plugins``: the subcommand of this name. ``job_store``: the store of the job that is looked at by commands of other
  distributions.
"""

from __future__ import annotations

from elastic_core import names_of

NAMES = {
    "cli.interrupt": "end_at_once raise_again",
    "cli.job_store": "NoStoreError STORE_FLAGS is_store_named open_store",
    "cli.option": "FlagCommand FlagOption",
    "cli.run": "warn",
    "cli.run_command": "RunCommand",
    "cli.settle": "FLAGS Flags configure meeting_place outline plugins_named without_effect",
}

__getattr__ = names_of(__name__, NAMES)
