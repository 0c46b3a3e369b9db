"""The modules that an agent and its warden must not import before they need them: each costs memory on every node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import elastic_core

CORE = Path(elastic_core.__file__).parents[1]
AGENT = (
    "elastic_core.cli.run",
    "elastic_core.agent.start",
    "elastic_core.agent.membership",
    "elastic_core.agent.resources",
    "elastic_core.agent.directories",
    "elastic_core.agent.account",
    "elastic_core.plugins.local_backend",
    "elastic_core.plugins.manager",
)
"""The imports of ``elastic run`` itself."""
NOT_IN_AN_AGENT = {
    "_hashlib": "OpenSSL's library, 3.5 MB: use elastic_core.digest",
    "asyncio": "11 MB",
    "hmac": "imports _hashlib; only a job with a token needs it",
    "secrets": "imports _hashlib: use os.urandom",
    "ssl": "OpenSSL's library; only a store with TLS needs it",
    "elastic_policies.known_failures": "only a job that failed needs it",
}
NOT_IN_A_WARDEN = {
    "typing": "0.6 MB: import it for type checkers only",
    "_hashlib": "OpenSSL's library, 3.5 MB",
    "dataclasses": "2.8 MB, with inspect",
    "pathlib": "2 MB",
    "shutil": "1.8 MB; the process imports it at its end",
    "subprocess": "2.5 MB",
    "threading": "0.7 MB; the process has one thread",
}


def imported_with(*modules: str, flags: tuple[str, ...] = ()) -> set[str]:
    """All modules that a new interpreter has after the import of some."""
    code = f"import sys; sys.path.append({str(CORE)!r}); import {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, *flags, "-c", code]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


def test_an_agent_imports_nothing_large_that_it_does_not_need() -> None:
    imported = imported_with(*AGENT)
    assert {*AGENT} < imported
    assert not NOT_IN_AN_AGENT.keys() & imported


def test_a_warden_imports_nothing_large_that_it_does_not_need() -> None:
    imported = imported_with("elastic_core.warden.process", flags=("-I", "-S"))
    assert not NOT_IN_A_WARDEN.keys() & imported


def test_the_program_of_a_warden_is_short() -> None:
    """Python compiles it at each start, and would keep what that took."""
    from elastic_core.warden.client import PROGRAM

    assert len(PROGRAM) < 1000
