"""Failure policies: known failures, and what follows a failure, decided by small pure functions that compose.

General layout, from the run down to one decision:

* ``plugin``: the plugin that a run loads; it hands every incident to the policies. ``flags``: its flags.
* ``composition``: the text of ``--failure_policy``, the policies that are on, and the strictest verdict of them.
* ``hopeless``, ``restarts``, ``exclusions``: the policies. Each makes a verdict or None of the incident, the history
  and its parameters.
* ``known_failures``: a table of failure texts, with what each means and what to do.
* ``past``: what the policies ask about the failures that the ledger remembers.
* ``durations``: ``30s``, ``10m`` and ``1h``, read and written.
* ``command``: ``elastic policy replay``, which applies policies to the events of a past run.
"""

__version__ = "0.1.0"
