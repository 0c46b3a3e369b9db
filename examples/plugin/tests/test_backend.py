from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from elastic_core import RendezvousConnectionError, RendezvousParameters, UsageError
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link
from elastic_example_plugin.backend import SqliteBackend, elastic_make_rendezvous
from elastic_testing.backend_conformance import (
    BackendConformance,
    HeldLineConformance,
    LineConformance,
    ProcessConformance,
)
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import LossyCalls


class TestSqliteBackend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, tmp_path: Path) -> MakeBackend:
        return partial(SqliteBackend, tmp_path / "rendezvous.db")

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend


class TestSqliteBackendOverABadLine(LineConformance, HeldLineConformance):
    @pytest.fixture
    def line(self) -> LossyCalls:
        return LossyCalls()

    @pytest.fixture
    def make_backend(self, line: LossyCalls, tmp_path: Path) -> MakeBackend:
        return line.through(partial(SqliteBackend, tmp_path / "rendezvous.db"))


def parameters(endpoint: Path) -> RendezvousParameters:
    return RendezvousParameters(backend="sqlite", endpoint=str(endpoint), run_id="job", min_nodes=1, max_nodes=2)


def test_the_endpoint_is_the_database_file(tmp_path: Path) -> None:
    backend = elastic_make_rendezvous(parameters(tmp_path / "rendezvous.db"))
    assert (tmp_path / "rendezvous.db").is_file()
    backend.close()


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no directory '.*/nowhere'"):
        elastic_make_rendezvous(parameters(tmp_path / "nowhere" / "rendezvous.db"))


@pytest.mark.parametrize("content", [None, b"no database at all"])
def test_a_file_that_is_no_database_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "rendezvous.db"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(RendezvousConnectionError, match="cannot be used"):
        elastic_make_rendezvous(parameters(path))


def test_a_bell_that_is_no_more_is_forgotten(tmp_path: Path) -> None:
    backend, gone = (SqliteBackend(tmp_path / "rendezvous.db", "job") for _ in range(2))
    gone.close()
    backend.append(ORIGIN, Link(1, "first"), b"1")
    bells = backend._database.execute("SELECT name FROM bell").fetchall()
    assert bells == [(backend._bell.getsockname(),)]
    assert backend.wait(Cursor(), roster=False, timeout=0) == Cursor(head=1, roster=0)
    backend.close()
