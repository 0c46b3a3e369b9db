"""An agent as an object: what its spec may not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastic_core.errors import UsageError
from elastic_torchrun.local_agent import LocalElasticAgent, WorkerSpec


def job(**given: Any) -> Any:
    """Return the error of a job of this spec, which does not come to run."""
    return LocalElasticAgent(WorkerSpec(**{"entrypoint": "true", **given})).run()


def no_spec() -> Any:
    wrong: Any = print
    return LocalElasticAgent(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: job(entrypoint=5), "The entrypoint 5 is neither a function nor a command."),
        (lambda: job(args="ab"), "args='ab' is not a tuple of arguments."),
        (lambda: job(args=5), "args=5 is not a tuple of arguments."),
        (lambda: job(master_port="29500"), "master_port '29500' is not a port, a whole number up to 65535."),
        (lambda: job(master_port=70000), "master_port 70000 is not a port, a whole number up to 65535."),
        (lambda: job(master_addr=5), "master_addr=5 is of the type int, not a text."),
        (no_spec, "The spec <built-in function print> is not a WorkerSpec"),
    ],
)
def test_an_impossible_specification_is_refused_before_anything_starts(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message.startswith(message)
