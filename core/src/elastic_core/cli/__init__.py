"""The command line: ``elastic run``, ``drain``, ``release``, ``plugins``, and the commands that plugins add.

``main`` is the entry point, ``commands`` finds the subcommand that is called and imports only that.
``options`` declares each flag of ``elastic run`` once, as an ``option``; ``run_command`` is the command, and
``run`` turns their values into a :class:`~elastic_core.config.run.RunConfig`. ``errors`` prints all errors.
"""
