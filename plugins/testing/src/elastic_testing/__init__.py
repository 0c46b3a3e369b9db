"""The conformance kit: suites of pytest tests that every rendezvous backend must pass.

A suite is a class of pytest tests. Import it from its module (:mod:`elastic_testing.backend_conformance`),
subclass it in a test file, and give it the fixtures that its docstring asks for.

* ``backend_conformance``: the suites by name, and which of them a backend takes. An author begins here.
* ``operation_suite``, ``run_suite``: what each operation of a backend must do.
* ``process_suite``, ``line_suite``, ``restart_suite``: the same with several processes, over a network that loses
  answers or holds them back, and with a store that is restarted.
* ``linearizability_suite``: the calls of several processes fit one order. ``history`` says what a backend promises of
  them, ``linearizability`` searches for the order.
* ``faults``, ``race``, ``connections``: what the suites share.
* ``memory``: a store in this process, which can be stopped, restarted and emptied.
* ``distributions``: a fixture that installs a distribution, with its entry points, for one test.
"""

import pytest

__version__ = "0.1.0"

pytest.register_assert_rewrite(
    *(f"elastic_testing.{suite}_suite" for suite in ("operation", "process", "line", "restart", "run")),
    "elastic_testing.connections",
    "elastic_testing.race",
)
