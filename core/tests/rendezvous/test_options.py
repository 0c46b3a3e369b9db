"""The parameters of a backend, with torch's arguments, and the public names of the package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import elastic_core
from elastic_core import rendezvous
from elastic_core.errors import UsageError
from elastic_core.rendezvous.options import RendezvousParameters


def parameters(**settings: Any) -> RendezvousParameters:
    given = {"backend": "mine", "endpoint": "", "run_id": "job", "min_nodes": 1, "max_nodes": 1, **settings}
    return RendezvousParameters(**given)


@pytest.mark.parametrize(
    ("text", "boolean"), [("true", True), ("1", True), ("Yes", True), ("f", False), ("0", False), ("no", False)]
)
def test_parameters_are_read_as_torchs_are(text: str, boolean: bool) -> None:
    params = parameters(config={"is_host": text, "rank": "3"})
    assert (params.get("rank"), params.get("other"), params.get("other", "x")) == ("3", None, "x")
    assert (params.get_as_bool("is_host"), params.get_as_bool("other", True)) == (boolean, True)
    assert (params.get_as_int("rank"), params.get_as_int("other", 7)) == (3, 7)


@pytest.mark.parametrize(
    ("given", "boolean", "number"), [(True, True, 1), (False, False, 0), (1, True, 1), (0, False, 0)]
)
def test_parameters_of_callers_in_python_need_be_no_text(given: Any, boolean: bool, number: int) -> None:
    params = parameters(config={"key": given})
    assert (params.get_as_bool("key"), params.get_as_int("key")) == (boolean, number)
    with pytest.raises(ValueError, match=r"'key=2': '2' is neither true nor false"):
        parameters(config={"key": 2}).get_as_bool("key")
    with pytest.raises(ValueError, match=r"\[\] is not a whole number"):
        parameters(config={"key": []}).get_as_int("key")


def test_parameters_take_torchs_arguments() -> None:
    given = RendezvousParameters("mine", "here", "job", 1, 2, "address", is_host=True)
    assert given == parameters(endpoint="here", max_nodes=2, local_addr="address", config={"is_host": True})
    for wrong in (("", "here", "job", 1, 2), ("mine", "here", "job", 0, 2), ("mine", "here", "job", 3, 2)):
        with pytest.raises(ValueError, match=r"no name|at least 1|greater than the maximum"):
            RendezvousParameters(*wrong)


@pytest.mark.parametrize(("read", "fault"), [("get_as_bool", "neither true nor false"), ("get_as_int", "not a whole")])
def test_a_parameter_of_another_kind_is_quoted(read: str, fault: str) -> None:
    with pytest.raises(UsageError, match=rf"--rdzv_conf 'key=soon': 'soon' is {fault}"):
        getattr(parameters(config={"key": "soon"}), read)("key")


def test_the_rendezvous_package_has_the_public_names_and_imports_them_late() -> None:
    script = "import sys, elastic_core.rendezvous; print('elastic_core.rendezvous.options' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
    for name in (name for name in elastic_core.__all__ if name.startswith("Rendezvous")):
        assert getattr(rendezvous, name) is getattr(elastic_core, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        rendezvous.nothing  # noqa: B018  (looking it up is the test)
