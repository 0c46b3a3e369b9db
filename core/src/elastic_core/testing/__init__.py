"""What a plugin's author tests with: suites that any backend must pass, whoever wrote it.

A suite is a class of pytest tests. Import it from its module (:mod:`elastic_core.testing.backend_conformance`),
subclass it in a test file, and give it the fixtures that its docstring asks for. Nothing else of core imports pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"elastic_core.testing.{suite}_suite"
        for suite in ("ledger", "roster", "wait", "process", "line", "held", "restart", "run")
    ),
    "elastic_core.testing.connections",
    "elastic_core.testing.racing",
)
