"""The store of a job that no flag names: the plugins of the group ``elastic.jobs`` are asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_core.cli.job_store import STORE_FLAGS, NoStoreError, open_store
from elastic_core.errors import PluginError, UsageError, how_to_install
from elastic_core.plugins.entry_points import Catalogue

Install = Callable[..., None]
NOTHING: dict[str, Any] = {"rdzv_backend": None, "rdzv_endpoint": "", "rdzv_id": None, "rdzv_conf": "", "plugin": ()}
FINDER = """
    from elastic_core import hookimpl
    from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
    from elastic_core.rendezvous.backend import FoundJob

    class Store(LocalBackend):
        closed = False

        def close(self):
            Store.closed = True
            super().close()

    @hookimpl
    def elastic_find_job(job):
        if job == "through":
            return FoundJob("through-1", store=Store(MemoryStore()))
        if job == "way":
            return FoundJob("way-1", "local", "")
        if job == "broken":
            raise KeyError(job)
        return None
"""


@pytest.fixture
def finder(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # jobs that run on this host have files there
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    install("dist", {"elastic.jobs": {"mine": "finding"}}, {"finding": FINDER})


def test_nothing_else_is_among_the_flags() -> None:
    assert {flag.name for flag in STORE_FLAGS} == set(NOTHING)


@pytest.mark.usefixtures("finder")
def test_a_connection_of_the_finder_is_used_and_closed() -> None:
    with open_store({**NOTHING, "rdzv_id": "through"}) as (store, job):
        assert (job, store.roster()) == ("through-1", [])
        assert not store.closed  # type: ignore[attr-defined]  # the finder's class
    assert store.closed  # type: ignore[attr-defined]


@pytest.mark.usefixtures("finder")
def test_without_a_connection_the_flags_of_the_finder_name_the_store() -> None:
    with (
        pytest.raises(NoStoreError, match="The local backend serves one node"),
        open_store({**NOTHING, "rdzv_id": "way"}),
    ):
        pass


@pytest.mark.usefixtures("finder")
def test_a_named_store_is_not_looked_for() -> None:
    named = {**NOTHING, "rdzv_backend": "local", "rdzv_id": "through"}
    with pytest.raises(NoStoreError, match="The local backend serves one node"), open_store(named):
        pass


@pytest.mark.usefixtures("finder")
def test_a_finder_that_fails_is_named() -> None:
    with pytest.raises(PluginError, match=r"'mine'.* raised in elastic_find_job: KeyError"):
        open_store({**NOTHING, "rdzv_id": "broken"}).__enter__()


@pytest.mark.parametrize(("job", "named"), [(None, ""), ("other", " 'other'")])
@pytest.mark.usefixtures("finder")
def test_a_job_that_is_not_found_is_said_to_be(job: str | None, named: str) -> None:
    with pytest.raises(NoStoreError) as missing, open_store({**NOTHING, "rdzv_id": job}):
        pass
    assert missing.value.message == f"No running job{named} of this user was found on this host."
    assert missing.value.hint == "Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id."


def test_where_no_finder_is_installed_the_distribution_that_brings_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: Catalogue([]))
    with pytest.raises(UsageError) as missing, open_store(NOTHING):
        pass
    assert str(missing.value.hint).endswith(f" Or have it found: {how_to_install('elastic-operate')}")
