"""The names of a library are imported when they are used; without the library, one sentence says what to install."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pytest

import elastic_core
from elastic_core.errors import PluginError, how_to_install
from elastic_core.worker import library as torch_worker

LIBRARY = """
    from elastic_core import hookimpl

    class TrainState:
        pass

    @hookimpl
    def elastic_train_state():
        return TrainState
"""
Install = Callable[..., None]


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker asks once; here each test does."""
    torch_worker._offered.cache_clear()
    monkeypatch.delenv("ELASTIC_PLUGINS", raising=False)
    yield
    torch_worker._offered.cache_clear()


@pytest.mark.parametrize("name", torch_worker.OFFERED)
def test_without_elastic_torch_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elastic_torch", None)
    with pytest.raises(ImportError) as caught:
        getattr(elastic_core, name)
    assert str(caught.value) == (
        f"elastic.{name} needs elastic-torch, which is not installed here. " + how_to_install("elastic-torch")
    )


def test_without_elastic_torchrun_nothing_writes_why_a_launch_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elastic_torchrun", None)
    monkeypatch.delitem(sys.modules, "elastic_torchrun.error_file", raising=False)
    assert torch_worker.failure_writer.__wrapped__() is None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'elastic_core\.worker\.library' has no attribute 'nothing'"):
        torch_worker.nothing  # noqa: B018  (looking it up is the test)


def test_a_library_that_the_run_names_takes_elastic_torchs_place(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "elastic_torch", None)
    groups = {"elastic.worker": {"mine": "my_library"}, "elastic.plugins": {"an-observer": "for_agents"}}
    install("dist", groups, {"my_library": LIBRARY})
    with pytest.raises(ImportError, match="needs elastic-torch"):
        elastic_core.TrainState  # noqa: B018  (installed, but not named)
    monkeypatch.setenv("ELASTIC_PLUGINS", "an-observer, mine")
    assert elastic_core.TrainState.__module__ == "my_library"
    with pytest.raises(ImportError, match="needs elastic-torch"):
        elastic_core.init_process_group  # noqa: B018  (it does not bring that)


def test_a_plugin_that_is_not_there_is_named_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARY + LIBRARY[LIBRARY.index("    @hookimpl") :].replace("train_state", "init_process_group")
    install("dist", {"elastic.worker": {"my-library": "my_library"}}, {"my_library": library})
    monkeypatch.setenv("ELASTIC_PLUGINS", "my-libary,my-library")
    message = "ELASTIC_PLUGINS names 'my-libary', and no such plugin is installed here. Did you mean 'my-library'?"
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as caught:
        assert elastic_core.TrainState is elastic_core.init_process_group
    assert [warning.filename for warning in caught] == [__file__], "where the script asks"


def test_of_two_libraries_the_last_named_is_asked_first(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"one_library": LIBRARY, "other_library": LIBRARY}
    install("dist", {"elastic.worker": {"one": "one_library", "other": "other_library"}}, modules)
    monkeypatch.setenv("ELASTIC_PLUGINS", "other,one")
    assert elastic_core.TrainState.__module__ == "one_library"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('not today')", r"'mine' \(dist 1\.0\) fails to load: RuntimeError: not today\."),
        (LIBRARY.replace("return", "1 / 0; return"), r"'mine' \(dist 1\.0\) raised in elastic_train_state: ZeroDiv"),
        (LIBRARY.replace("train_state", "train_stat"), r"'elastic_train_stat', which is not a hook\. Did you mean"),
    ],
)
def test_a_broken_library_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    install("dist", {"elastic.worker": {"mine": "my_library"}}, {"my_library": source})
    monkeypatch.setenv("ELASTIC_PLUGINS", "mine")
    with pytest.raises(PluginError, match=message):
        elastic_core.TrainState  # noqa: B018  (looking it up is the test)
