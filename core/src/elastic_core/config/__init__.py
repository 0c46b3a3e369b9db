"""The settings of a run, and every environment variable.

* ``run``: :class:`~elastic_core.config.run.RunConfig`, one frozen record. ``flag``: how a flag is
  declared. ``program``: what the workers run.
* ``parse``: reads the values of flags and settings from text. ``rdzv_conf``: the settings of ``--rdzv_conf``.
* ``environment``: each environment variable that Elastic reads or sets.
"""
