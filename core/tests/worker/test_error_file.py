"""The exception of a recorded function goes on as it was, whatever can be written of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_core.worker.error_file import record


class JobError(Exception):
    """As a launcher's, whose first failure has left what is no JSON."""

    def get_first_failure(self) -> tuple[int, object]:
        return 0, SimpleNamespace(error_file_data={"message": {"message": object()}}, exitcode=1)


def test_an_error_file_that_cannot_be_written_does_not_hide_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    @record
    def main() -> None:
        raise JobError("boom")

    with pytest.raises(JobError, match="boom"):
        main()
    assert list(tmp_path.iterdir()) == []


class WordlessError(Exception):
    """An exception of another library, whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_exception_without_a_text_is_written_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    @record
    def main() -> None:
        raise WordlessError

    with pytest.raises(WordlessError):
        main()
    assert "WordlessError: <its text cannot be made>" in path.read_text()
