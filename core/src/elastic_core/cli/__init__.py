"""The command line: ``elastic run``, the commands that look at a running job, and those that plugins add.

General layout:

* ``main``: the entry point. ``commands``: finds the subcommand that is called, and imports only that. ``errors``:
  prints all errors. ``interrupt``: Ctrl-C before there is anything to clean up.
* ``run_command``: the command ``elastic run`` and its help. ``option``: click's options, made of flags. ``run``: runs
  a job. ``settle``: turns the values of flags into a :class:`~elastic_core.config.run.RunConfig`, with ``program``
  (finds the program) and ``scheduler`` (defaults inside a scheduler's job).
* ``stacks``, ``plugins``: the subcommands of these names. ``job_store``: the store of the job that is looked at; other
  distributions use it too. ``local_ranks``: where the ranks of this host are, for a job without a store.
"""
