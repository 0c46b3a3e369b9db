from __future__ import annotations

import pytest

from elastic_core.config.parse import node_range
from elastic_core.config.rdzv_conf import RendezvousConf, check_nodes, parse_conf, scheduler_uid
from elastic_core.config.run import Timing
from elastic_core.errors import UsageError
from elastic_core.rendezvous.options import RendezvousOptions

OPTIONS = RendezvousOptions(
    endpoint="HOST",
    conf={"is_host": "whether the store lives here", "read_timeout": "seconds", "password": "a secret"},
    ignored={"rank": "the nodes count themselves"},
)


def read(text: str) -> RendezvousConf:
    return parse_conf(text, backend="c10d", options=OPTIONS)


@pytest.mark.parametrize(
    ("text", "conf"),
    [
        pytest.param("", RendezvousConf(), id="nothing"),
        pytest.param("join_timeout=60", RendezvousConf(timing=Timing(join_timeout=60)), id="core's"),
        pytest.param("run_uid=slurm-7", RendezvousConf(run_uid="slurm-7"), id="the run's uid"),
        pytest.param("is_host=true", RendezvousConf(backend={"is_host": "true"}), id="the backend's, as typed"),
        pytest.param(
            " is_host = a=b , lost_after = 1e1 ,",
            RendezvousConf(timing=Timing(lost_after=10), backend={"is_host": "a=b"}),
            id="several, with blanks and a comma too many",
        ),
    ],
)
def test_keys_go_to_core_or_to_the_backend(text: str, conf: RendezvousConf) -> None:
    assert read(text) == conf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo=1", "--rdzv_conf: there is no key 'foo'."),
        ("join_timout=1", "--rdzv_conf: there is no key 'join_timout'. Did you mean 'join_timeout'?"),
        ("ishost=1", "--rdzv_conf: there is no key 'ishost'. Did you mean 'is_host'?"),
        ("is_host", "--rdzv_conf: 'is_host' is not of the form KEY=VALUE."),
        ("=1", "--rdzv_conf: '=1' is not of the form KEY=VALUE."),
        ("is_host=1,is_host=0", "--rdzv_conf gives 'is_host' twice."),
        ("join_timeout=soon", "--rdzv_conf 'join_timeout=soon': 'soon' is not a number of seconds."),
        ("join_timeout=inf", "--rdzv_conf 'join_timeout=inf': 'inf' is not a number of seconds."),
        ("join_timeout=-1", "--rdzv_conf join_timeout=-1 is not a positive number of seconds."),
        ("pasword=hunter2", "--rdzv_conf: there is no key 'pasword'. Did you mean 'password'?"),
        ("run_uid=u,password=abc,hunter2", "--rdzv_conf: part 3 is not of the form KEY=VALUE."),
        ("password=hunt,er2=x", "--rdzv_conf: part 2 has no key that is known."),
        ("password=hunt,is_host=x,is_host=y", "--rdzv_conf gives the key of part 3 twice."),
        ("run_uid=", "--rdzv_conf 'run_uid=': the run's uid is empty."),
    ],
)
def test_a_nonsensical_value_is_refused_and_quoted(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("text", "fence", "lost"),
    [("fence_after=2", "2", "6"), ("fence_after=29.9", "29.9", "6"), ("lost_after=150", "600", "150")],
)
def test_a_fence_that_would_stop_healthy_workers_is_refused_with_both_values(text: str, fence: str, lost: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert refused.value.message == f"--rdzv_conf fence_after={fence} is less than 5 times lost_after={lost}."


def test_a_fence_of_five_times_lost_after_is_taken() -> None:
    assert read("fence_after=30").timing.fence_after == 30
    assert read("fence_after=7.5,lost_after=1.5,beat_interval=0.5").timing.lost_after == 1.5


def test_an_unknown_key_is_answered_with_all_that_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        read("foo=1")
    assert refused.value.hint == (
        "With the c10d backend the keys are: beat_interval, fence_after, is_host, join_timeout, last_call_timeout, "
        "lost_after, order, password, plan_timeout, read_timeout, resize_wait, run_uid, token_file."
    )


@pytest.mark.parametrize(
    ("environ", "uid"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": ""}, None),
        ({"SLURM_JOB_ID": "77"}, "slurm-77.0"),
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2"}, "slurm-77.2"),
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2", "SLURM_ARRAY_JOB_ID": "70"}, "slurm-77.2"),
        ({"SLURM_JOB_ID": "77", "ELASTIC_SCHEDULER_UID": "uid-of-a-job"}, "uid-of-a-job"),
    ],
)
def test_the_scheduler_tells_runs_and_requeues_apart(environ: dict[str, str], uid: str | None) -> None:
    assert scheduler_uid(environ) == uid


def test_tasks_of_an_array_are_one_run_if_the_job_has_the_arrays_id() -> None:
    environ = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2", "SLURM_ARRAY_JOB_ID": "70"}
    assert [scheduler_uid(environ, job) for job in ("70", "77", None)] == ["slurm-70", "slurm-77.2", "slurm-77.2"]


def test_torchs_keys_are_taken_and_the_backends_own_reason_goes_before_cores() -> None:
    assert read("rank=1,store_type=file").without_effect == (
        "--rdzv_conf rank=1 has no effect: the nodes count themselves.",
        "--rdzv_conf store_type=file has no effect: the backend is the kind of store.",
    )


def test_a_handler_of_others_gets_every_key_and_core_its_own_two() -> None:
    conf = parse_conf("foo=1,join_timeout=x,fence_after=9", backend="mine", options=RendezvousOptions(handler=True))
    assert conf.backend == {"foo": "1", "join_timeout": "x", "fence_after": "9"}
    assert conf.timing == Timing(fence_after=9)
    waits = parse_conf("join_timeout=7", backend="mine", options=RendezvousOptions(handler=True))
    assert (waits.backend, waits.timing) == ({"join_timeout": "7"}, Timing(join_timeout=7))
    sealed = parse_conf("order=1,token_file=t", backend="mine", options=RendezvousOptions(handler=True))
    assert (sealed.backend, sealed.token_file) == ({}, "t"), "which the backend refuses"
    endless = parse_conf("join_timeout=-1", backend="mine", options=RendezvousOptions(handler=True))
    assert (endless.backend, endless.timing) == ({"join_timeout": "-1"}, Timing())


HANDLER, ALONE, ANY = RendezvousOptions(handler=True), RendezvousOptions(single_node=True), RendezvousOptions()


@pytest.mark.parametrize(
    ("nnodes", "spares", "options", "node_rank", "message"),
    [
        ("1", 1, ALONE, None, "--spares=1: with the mine backend no other node can join, so there is no spare."),
        ("2", 1, ANY, 0, "--spares=1: nodes that are numbered by hand have no spares: a spare has no number."),
    ],
)
def test_sizes_and_spares_are_refused_where_they_cannot_be_had(
    nnodes: str, spares: int, options: RendezvousOptions, node_rank: int | None, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_nodes(("mine", ""), node_range(nnodes), options, spares=spares, node_rank=node_rank)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("nnodes", "spares", "options"), [("4:8", 0, HANDLER), ("4,6,8", 2, ANY), ("1", 1, ANY), ("1", 0, ALONE)]
)
def test_sizes_and_spares_are_taken_elsewhere(nnodes: str, spares: int, options: RendezvousOptions) -> None:
    check_nodes(("mine", ""), node_range(nnodes), options, spares=spares)
