"""The command line: ``elastic run``, the commands that look at a running job, and those that plugins add.

* ``main``: the entry point. ``commands``: finds the subcommand that is called, imports only that, and prints all
  errors. ``interrupt``: Ctrl-C before there is anything to clean up.
* ``run``: ``elastic run``, with its help and the defaults inside a scheduler's job. ``option``: click's options, made
  of flags. ``settle``: turns the values of flags into a :class:`~elastic_core.config.run.RunConfig`.
"""

from elastic_core import names_of

NAMES = {
    "cli.interrupt": "end_at_once raise_again",
    "cli.option": "FlagCommand FlagOption",
    "cli.run": "RunCommand warn",
    "cli.settle": "configure meeting_place outline plugins_named without_effect",
}

__getattr__ = names_of(__name__, NAMES)
