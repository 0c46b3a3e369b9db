"""Failure policies: known failures, and what follows a failure, decided by small pure functions that compose.

General layout, from the run down to one decision:

* ``plugin``: the plugin that a run loads; it hands every incident to the policies.
* ``flags``: its flags.
* ``options``: the text of ``--failure_policy``, and the policies that are on without it.
* ``composition``: asks all policies about one incident, and returns the strictest verdict.
* ``budget``, ``preemptions``, ``backoff``, ``classification``, ``no_progress``, ``nan_loss``, ``quarantine``,
  ``torn_checkpoint``: one policy each, which makes a verdict or None of the incident, the history and its parameters.
* ``hopeless``: whether a job cannot succeed, for ``no_progress``; its table has the rules.
* ``known_failures``: a table of failure texts, with what each means and what to do.
* ``past``: what the policies ask about the failures that the ledger remembers.
* ``durations``: ``30s``, ``10m`` and ``1h``, read and written.
* ``replay`` and ``command``: ``elastic policy replay``, which applies policies to the events of a past run.
"""

from __future__ import annotations

__version__ = "0.1.0"
