from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.config.parse import OnNodeLoss
from elastic_core.config.run import MAX_RESTARTS
from elastic_core.errors import UsageError
from elastic_core.events import Level
from elastic_core.plugins.entry_points import Catalogue
from elastic_hangs.flags import HANG_TIMEOUT, HANG_WINDOW
from elastic_health.flags import HEALTH_CHECK, HEALTH_RETRY, HEALTH_TIMEOUT
from elastic_policies.flags import FAILURE_POLICY
from elastic_progress.flags import CHECKPOINT_PATTERN, NAN_STOP, PROGRESS_PATTERN
from elastic_torchrun.launch import elastic_launch
from elastic_torchrun.launch_config import LaunchConfig, configure
from elastic_warmstart.flags import PRELOAD, WARM_START


def test_every_flag_that_describes_a_run_can_be_given() -> None:
    config = configure(LaunchConfig(on_node_loss="fail", preload="torch,numpy", warm_start=False, failure_grace=7))
    assert (config.on_node_loss, config.of(PRELOAD)) == (OnNodeLoss.FAIL, ("torch", "numpy"))
    assert (config.of(WARM_START), config.failure_grace) == (False, 7)


@pytest.mark.parametrize(("text", "level"), [("", Level.INFO), ("WARNING", Level.WARNING), ("loud", Level.INFO)])
def test_loglevel_holds_from_python_too(monkeypatch: pytest.MonkeyPatch, text: str, level: Level) -> None:
    monkeypatch.setenv("LOGLEVEL", text)
    assert configure(LaunchConfig()).least_level is level
    assert configure(LaunchConfig(verbose=True)).least_level is Level.DEBUG


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run_id": 5}, "run_id=5 is of the type int, not a text."),
        ({"role": None}, "role=None is of the type NoneType, which --role does not take."),
        ({"rdzv_backend": None}, "rdzv_backend=None is of the type NoneType, not a text."),
        ({"rdzv_endpoint": b"redis://:password@host"}, "rdzv_endpoint is of the type bytes, not a text."),
        ({"rdzv_configs": None}, "rdzv_configs is of the type NoneType, not a mapping."),
        ({"rdzv_configs": "password=x"}, "rdzv_configs is of the type str, not a mapping."),
        ({"rdzv_timeout": "x"}, "rdzv_timeout='x' is of the type str, not a number of seconds."),
        ({"monitor_interval": None}, "monitor_interval=None is of the type NoneType, not a number of seconds."),
        ({"shutdown_timeout": "soon"}, "shutdown_timeout='soon' is not a number of seconds."),
        ({"start_method": "spwan"}, "start_method='spwan' is none of spawn, fork, forkserver. Did you mean 'spawn'?"),
        ({"log_line_prefix_template": 5}, "log_line_prefix_template=5 is of the type int, not a text."),
        ({"local_addr": "10.0.0.1:80"}, "local_addr='10.0.0.1:80' has a port, and no port is meant."),
        ({"signals_to_handle": {"SIGTERM": 1}}, "signals_to_handle={'SIGTERM': 1} is of the type dict, which"),
        ({"duplicate_stdout_filters": "loss"}, "duplicate_stdout_filters='loss' is not a list of texts."),
        ({"duplicate_stderr_filters": [5]}, "duplicate_stderr_filters=[5] is not a list of texts."),
        ({"plugins": None}, "plugins=None is not a list of texts."),
        ({"failure_policy": {"budget": "1/1h"}}, "failure_policy={'budget': '1/1h'} is of the type dict, which"),
        ({"virtual_local_rank": "no"}, "virtual_local_rank='no' is neither 1 (yes) nor 0 (no)."),
        (
            {"numa_options": "nodes"},
            "numa_options='nodes' is none of node, socket, exclusive, core-complex. Did you mean 'node'?",
        ),
        ({"log_dir": 5}, "log_dir=5 is of the type int, not a path."),
        ({"redirects": 7}, "7 is neither a flag for streams nor a mapping of local ranks to flags."),
        ({"tee": {-1: 3}}, "{-1: 3} is neither a flag for streams nor a mapping of local ranks to flags."),
        ({"hang_window": "long"}, "hang_window='long' is not a number of seconds."),
        ({"hang_timeout": 0}, "hang_timeout=0 is not more than 0 seconds."),
        ({"progress_pattern": ""}, "progress_pattern='' is empty."),
        ({"checkpoint_pattern": 5}, "checkpoint_pattern=5 is of the type int, which"),
        ({"checkpoint_path": 5}, "checkpoint_path=5 is of the type int, which"),
        ({"nan_stop": True}, "nan_stop=True is of the type bool, which"),
        (
            {"health_check": "gpu"},
            "health_check='gpu' is of the type str, which",
        ),
        ({"health_check": ["--fast"]}, "health_check=('--fast',) has '--fast', which is neither the name of a check"),
        ({"health_timeout": None}, "health_timeout=None is of the type NoneType, which"),
        ({"health_timeout": 0}, "health_timeout=0 is not more than 0 seconds."),
        ({"health_retry": "later"}, "health_retry='later' is not a number of seconds."),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes=3 is greater than max_nodes=2."),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_value_of_a_wrong_type_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        configure(LaunchConfig(**given))
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("given", "policy", "max_restarts"),
    [
        ({}, "", MAX_RESTARTS),
        ({"failure_policy": "no_progress=2"}, "no_progress=2", MAX_RESTARTS),
        ({"failure_policy": "budget=9/1h"}, "budget=9/1h", None),
        ({"failure_policy": "budget=9/1h", "max_restarts": 5}, "budget=9/1h", 5),
        ({"failure_policy": "budget=off"}, "budget=off", MAX_RESTARTS),
    ],
)
def test_a_failure_policy_and_the_limit_of_restarts(
    given: dict[str, Any], policy: str, max_restarts: int | None
) -> None:
    config = configure(LaunchConfig(**given))
    assert (config.of(FAILURE_POLICY), config.max_restarts) == (policy, max_restarts)


@pytest.mark.parametrize("given", [{"run_id": None}, {"start_method": None}, {"metrics_cfg": None}, {"local_addr": ""}])
def test_none_and_nothing_are_the_default(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    configure(LaunchConfig(**given))
    assert capsys.readouterr().err == ""


def test_hangs_and_progress_are_looked_for_as_the_flags_of_the_command_line_say() -> None:
    given: dict[str, Any] = {
        "hang_window": 60,
        "hang_timeout": 90.5,
        "progress_pattern": r"step (?P<step>\d+)",
        "checkpoint_pattern": "saved",
        "nan_stop": 3,
    }
    config = configure(LaunchConfig(checkpoint_path=Path("/checkpoints"), **given))
    flags = (HANG_WINDOW, HANG_TIMEOUT, PROGRESS_PATTERN, CHECKPOINT_PATTERN, NAN_STOP)
    assert {flag.name: config.of(flag) for flag in flags} == given
    assert config.checkpoint_path == "/checkpoints"
    plain = configure(LaunchConfig())
    assert [plain.of(flag) for flag in flags] == [None, None, None, None, 0]


def test_health_checks_are_those_of_the_flags() -> None:
    config = configure(LaunchConfig(health_check=["gpu=90%,matmul", "/opt/check --fast"], health_retry=5))
    assert config.of(HEALTH_CHECK) == ("gpu=90%", "matmul", "/opt/check --fast")
    assert (config.of(HEALTH_TIMEOUT), config.of(HEALTH_RETRY)) == (60.0, 5)
    plain = configure(LaunchConfig(health_timeout=1.5))
    assert (plain.of(HEALTH_CHECK), plain.of(HEALTH_TIMEOUT), plain.of(HEALTH_RETRY)) == ((), 1.5, None)


def untyped(value: object) -> Any:
    """A value that a caller without a type checker gives."""
    return value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: elastic_launch(LaunchConfig(), ""), "The entrypoint '' is neither a function nor a command."),
        (
            lambda: elastic_launch(untyped({}), print)(),
            "The configuration is of the type builtins.dict,",
        ),
    ],
)
def test_an_impossible_configuration_is_refused_before_anything_starts(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (1, 1, (), 0)),
        ({"node_sizes": (8, 4, 6)}, (4, 8, (4, 6, 8), 0)),
        ({"node_sizes": [2, 3]}, (2, 3, (), 0)),
        ({"node_sizes": [4, 8], "min_nodes": 4, "max_nodes": 8, "spares": 2}, (4, 8, (4, 8), 2)),
    ],
)
def test_sizes_and_spares(given: dict[str, Any], found: tuple[object, ...], tmp_path: Path) -> None:
    run = configure(LaunchConfig(rdzv_backend="file", rdzv_endpoint=str(tmp_path), **given))
    assert (run.min_nodes, run.max_nodes, run.sizes, run.spares) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"node_sizes": ()}, "node_sizes=() is not a list of numbers of nodes."),
        ({"node_sizes": (4, True)}, "node_sizes=(4, True) is not a list of numbers of nodes."),
        ({"node_sizes": "4,6"}, "node_sizes='4,6' is not a list of numbers of nodes."),
        ({"node_sizes": (0, 4)}, "node_sizes=(0, 4) has fewer than 1 node."),
        ({"node_sizes": 4}, "node_sizes=4 is of the type int, not a list of numbers."),
        (
            {"node_sizes": (4, 8), "max_nodes": 6},
            "node_sizes=(4, 8) is from 4 to 8 nodes, but min_nodes=1 and max_nodes=6.",
        ),
        ({"spares": 1}, "--spares=1: with the local backend no other node can join, so there is no spare."),
        ({"spares": -1, "rdzv_backend": "file", "rdzv_endpoint": "/tmp"}, "spares=-1 is less than 0."),
        ({"notices": "ibm"}, "notices='ibm' is none of auto, aws, gcp, azure, none."),
        ({"notices": 5}, "notices=5 is none of auto, aws,"),
    ],
)
def test_wrong_sizes_and_spares_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        configure(LaunchConfig(**given))
    assert refused.value.message.startswith(message)


def test_a_flag_may_also_be_assigned_and_read() -> None:
    given = LaunchConfig(hang_timeout=5)
    given.failure_policy = "budget=3/1h"
    assert (given.hang_timeout, given.failure_policy) == (5, "budget=3/1h")
    config = configure(given)
    assert (config.of(HANG_TIMEOUT), config.of(FAILURE_POLICY)) == (5.0, "budget=3/1h")
    assert LaunchConfig().failure_grace == 3.0, "a flag that was not given has its default"
    with pytest.raises(AttributeError, match="neither an argument of LaunchConfig nor a flag"):
        _ = LaunchConfig().hang_timeouts


@pytest.mark.parametrize("given", [{"numa_binding": "node"}, {"flags": {"max_restarts": 7}}])
def test_a_flag_that_is_an_argument_under_another_name_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is no flag of a LaunchConfig"):
        configure(LaunchConfig(**given))


@pytest.mark.parametrize(
    ("given", "flag", "value"),
    [
        ({"numa_options": "socket"}, "numa_binding", "socket"),
        ({"numa_options": SimpleNamespace(affinity_mode=SimpleNamespace(value="node"))}, "numa_binding", "node"),
        ({"virtual_local_rank": True}, "virtual_local_rank", True),
    ],
)
def test_arguments_of_torchs_are_flags_of_a_plugin(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], flag: str, value: object
) -> None:
    assert configure(LaunchConfig(**given)).settings == {flag: value}
    assert configure(LaunchConfig()).settings == {}
    alone = Catalogue([offer for offer in Catalogue.read()._offers if offer.distribution != "elastic-devices"])
    monkeypatch.setattr(Catalogue, "read", lambda: alone)
    configure(LaunchConfig())
    with pytest.raises(UsageError, match=f"--{flag} needs elastic-devices, which is not installed"):
        configure(LaunchConfig(**given))


def test_a_word_for_the_number_of_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="nproc_per_node 'auto' is not a whole number of at least 1"):
        configure(LaunchConfig(nproc_per_node=untyped("auto")))
