from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from elastic_core.cli.settle import count_workers
from elastic_core.config.parse import workers
from elastic_core.errors import PluginError, UsageError, how_to_install
from elastic_core.plugins.entry_points import Catalogue

Install = Callable[..., None]
PLUGIN = """
    from elastic_core import hookimpl
    from elastic_core.errors import UsageError

    class Accelerators:
        @hookimpl
        def elastic_count_workers(self, word, environ):
            if word == "tpu":
                raise UsageError("There is no TPU here.")
            return {"hpu": int(environ["HPUS"]), "ipu": "two", "many": 5000, "none": None}[word]
"""
WORDS = dict.fromkeys(("hpu", "ipu", "many", "none", "npu", "tpu"), "accelerators:Accelerators")


@pytest.fixture
def accelerators(install: Install) -> None:
    """A plugin of a vendor."""
    install("elastic-accelerators", {"elastic.worker_counts": WORDS}, {"accelerators": PLUGIN})


def nothing() -> Catalogue:
    return Catalogue([])


def test_cpu_counts_the_cpus_that_the_agent_may_use_without_any_plugin() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        for cpus in (allowed, {min(allowed)}):
            os.sched_setaffinity(0, cpus)
            assert count_workers("cpu", {}, lambda: pytest.fail("read")) == len(cpus)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("word", ["auto", "gpu", "xpu"])
def test_a_word_of_a_distribution_that_is_not_installed_names_it(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        count_workers(word, {}, nothing)
    assert refused.value.message == f"--nproc_per_node {word!r} needs elastic-devices, which is not installed."
    assert refused.value.hint == how_to_install("elastic-devices")


def test_another_word_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(UsageError) as refused:
        count_workers("gpus", {}, nothing)
    assert str(refused.value) == (
        "--nproc_per_node 'gpus' is neither a whole number nor one of auto, cpu, gpu, xpu. Did you mean 'gpu'?"
    )


@pytest.mark.usefixtures("accelerators")
def test_a_plugin_adds_words() -> None:
    assert workers("hpu") == "hpu"
    assert count_workers("hpu", {"HPUS": "8"}) == 8
    with pytest.raises(UsageError, match=r"'hpus' is neither .* cpu, gpu, hpu, ipu, .*\. Did you mean 'hpu'\?"):
        count_workers("hpus", {})


@pytest.mark.usefixtures("accelerators")
@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("tpu", UsageError, "There is no TPU here."),
        ("npu", PluginError, r"The .* 'npu' \(elastic-accelerators 1.0\) raised in elastic_count_workers: KeyError"),
        ("ipu", PluginError, r"'ipu' \(elastic-accelerators 1.0\) counts 'two' workers; from 1 to 4096 are taken"),
        ("many", PluginError, "counts 5000 workers"),
        ("none", PluginError, "counts None workers"),
    ],
)
def test_a_plugin_that_cannot_count_ends_the_launch(word: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        count_workers(word, {"HPUS": "8"})
