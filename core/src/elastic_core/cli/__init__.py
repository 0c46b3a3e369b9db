"""The command line: ``elastic run``, ``elastic plugins``, and the commands that plugins add.

General layout: ``main`` is the entry point, ``commands`` finds the subcommand that is called and imports only that.
``options`` declares each flag of ``elastic run`` once, each an ``option``; ``run_command`` makes them a command, and
``run`` turns their values into a :class:`~elastic_core.config.run.RunConfig`. ``errors`` prints all errors.
"""
