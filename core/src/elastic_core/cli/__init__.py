"""The command line: ``elastic run``, ``drain``, ``release``, ``plugins``, and the commands that plugins add.

``main`` is the entry point, ``commands`` finds the subcommand that is called and imports only that.
``options`` has the command ``elastic run`` and declares each of its flags once, as an ``option``; ``run`` turns their
values into a :class:`~elastic_core.config.run.RunConfig`. ``errors`` prints all errors.
"""
