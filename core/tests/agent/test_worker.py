"""The cause of a failure that core finds without a plugin."""

from __future__ import annotations

import pytest

from elastic_core.agent.worker import plain_cause
from elastic_core.causes import Cause
from elastic_core.worker.error_file import as_torchs

WRITTEN = {"message": {"message": "ValueError: no such layer\nin decoder", "extraInfo": {"py_callstack": "…"}}}


def recorded(by: str | None = None) -> dict[str, object]:
    """Return an error file of elastic-causes; without ``by`` in torch's form."""
    message = {"message": "ValueError: no such layer", "errorCode": 1}
    return {"message": message, **({} if by is None else {"elastic": {"by": by, "code": 1}})}


@pytest.mark.parametrize(
    ("code", "error_file", "message", "record"),
    [
        pytest.param(1, {}, "the last line", {}, id="stderr"),
        pytest.param(-9, {}, "the last line", {}, id="a signal"),
        pytest.param(3, WRITTEN, "ValueError: no such layer", WRITTEN, id="@record"),
        pytest.param(3, {"message": "a text alone"}, "a text alone", {"message": "a text alone"}, id="a text alone"),
        pytest.param(-9, WRITTEN, "the last line", WRITTEN, id="@record, and a signal: it may have gone on"),
        pytest.param(-9, recorded("exception"), "the last line", recorded(), id="an exception, and a crash after it"),
        pytest.param(-9, recorded("exit"), "the last line", {}, id="an exit that it survived, and a signal"),
        pytest.param(1, {"message": {"message": 5}}, "the last line", {}, id="a file that makes no sense"),
    ],
)
def test_the_message_is_that_of_record_or_the_last_line(
    code: int, error_file: dict[str, object], message: str, record: dict[str, object]
) -> None:
    """The launcher's error file gets the record after a signal, too, as torchrun's does."""
    assert as_torchs(error_file, code) == record
    stderr = "step 812\nthe last line\n\n"
    assert plain_cause(code, record, stderr) == Cause(message=message, text=stderr, detail=stderr)
