"""What needs torch is reached when it is used; where it is missing, one sentence says what to install."""

from __future__ import annotations

import sys

import pytest

import elastic_core
from elastic_core import torch_worker
from elastic_core.errors import UsageError


@pytest.mark.parametrize("name", elastic_core._OF_TORCH)
def test_without_elastic_torch_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elastic_torch", None)
    with pytest.raises(UsageError) as caught:
        getattr(elastic_core, name)
    assert str(caught.value) == (
        f"elastic.{name} needs elastic-torch, which is not installed here.\nInstall it with: pip install elastic-torch"
    )


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'elastic_core\.torch_worker' has no attribute 'nothing'"):
        torch_worker.nothing  # noqa: B018  (looking it up is the test)
