from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, UsageError
from elastic_core.exit_codes import ExitCode
from elastic_doctor.findings import ok, refused, skipped, verdict, warning, wrong


def test_the_first_that_is_wrong_is_the_cause() -> None:
    state = refused("roster", RendezvousStateError("Two rows."), "enter")
    reach = refused("connect", RendezvousConnectionError("Nobody listens."))
    usage = refused("connect", UsageError("No such key."))
    assert verdict([ok("a", ""), warning("b", "", ""), state, reach]) == ExitCode.REFUSED
    assert verdict([reach, state]) == ExitCode.UNREACHABLE
    assert verdict([usage, state]) == ExitCode.USAGE
    assert verdict([ok("a", ""), warning("b", "", ""), skipped("c", "")]) == 0
    assert (state.seen, state.advice) == ("enter: Two rows.", None)


@pytest.mark.parametrize("text", ["redis://user:s3cret@host:1", "password=s3cret,x=1"])
def test_a_finding_is_one_line_without_passwords(text: str) -> None:
    finding = wrong("connect", f"cannot reach\n  {text}", f"do not say {text}")
    assert "s3cret" not in str(finding.as_json())
    assert finding.seen.startswith("cannot reach ")
    assert finding.as_json()["state"] == "wrong"
