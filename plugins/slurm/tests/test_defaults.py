"""Flags that follow from an allocation. The variables are those of Slurm 22.05 in the situation that a case names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from elastic_core.errors import UsageError
from elastic_slurm import allocation
from elastic_slurm.plugin import describe, few_cpus, flag_defaults, port_of, warning

JOB = {
    "SLURM_JOB_ID": "1077",
    "SLURM_JOB_NODELIST": "node[0-3]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURMD_NODENAME": "node2",
    "SLURM_SUBMIT_HOST": "login",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}
STEP = {
    **JOB,
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "node[0-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
}
GPUS = {"SLURM_GPUS_ON_NODE": "8", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}
ARRAY = {
    **STEP,
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_STEP_NODELIST": "node1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_NODEID": "0",
    "SLURM_ARRAY_JOB_ID": "1070",
    "SLURM_ARRAY_TASK_COUNT": "8",
}
SHARED = ("/home/me/.elastic", "SLURM_SUBMIT_DIR")


def found(
    environ: Mapping[str, str], given: Mapping[str, object] | None = None, shared: tuple[str, str] | None = SHARED
) -> dict[str, str]:
    """Return the texts of the flags."""
    here = allocation.read(environ)
    assert here is not None
    return {flag: text for flag, (text, _) in flag_defaults(here, given or {}, lambda: shared).items()}


def refused(environ: Mapping[str, str], given: Mapping[str, object] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        found(environ, given)
    return caught.value


def test_a_step_on_all_nodes_meets_in_a_shared_directory() -> None:
    flags = found(STEP)
    assert flags.pop("signals_to_handle") == "SIGTERM,SIGINT,SIGHUP,SIGUSR1,SIGUSR2,SIGURG"
    assert (flags.pop("preemption_grace"), flags.pop("shutdown_timeout")) == ("20", "90")
    assert flags == {
        "nnodes": "4",
        "rdzv_id": "1077.3",
        "rdzv_backend": "file",
        "rdzv_endpoint": "/home/me/.elastic",
        "rdzv_conf": "order=2",
    }


@pytest.mark.parametrize(
    ("environ", "given", "conf"),
    [
        pytest.param(STEP, {}, "order=2", id="Slurm's order, which is that of the network"),
        pytest.param({**STEP, "SLURM_TOPOLOGY_ADDR": "node2"}, {}, "order=2", id="no switches are known"),
        pytest.param({**STEP, "SLURM_TOPOLOGY_ADDR": "s0.s4.node2"}, {}, "order=s0.s4.node2", id="its switches"),
        pytest.param({**ARRAY, "SLURM_ARRAY_TASK_ID": "5"}, {}, "order=5.2", id="a job in an array"),
        pytest.param(
            {**ARRAY, "SLURM_ARRAY_TASK_ID": "5"},
            {"rdzv_id": "1070"},
            "order=5.2,join_timeout=86400",
            id="a node of an array waits as long as it may",
        ),
        pytest.param(
            {**ARRAY, "SLURM_JOB_END_TIME": "4102444800"}, {"rdzv_id": "1070"}, "join_timeout=", id="until its end"
        ),
        pytest.param(STEP, {"rdzv_conf": "order=7"}, "order=2", id="core leaves out what is given"),
    ],
)
def test_where_a_node_stands_and_how_long_it_waits(
    environ: dict[str, str], given: dict[str, object], conf: str
) -> None:
    assert conf in found(environ, given)["rdzv_conf"]


@pytest.mark.parametrize(("cpus", "warned"), [(1, True), (7, True), (8, False), (64, False)])
def test_workers_that_share_a_cpu_are_told(cpus: int, warned: bool) -> None:
    here = allocation.read({**STEP, **GPUS})
    assert here is not None
    assert (few_cpus(here, {}, cpus) is not None) == warned
    assert few_cpus(here, {"nproc_per_node": 1}, cpus) is None


def test_the_first_task_alone_says_that_there_are_too_many() -> None:
    with pytest.raises(SystemExit):
        found({**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x4)"})


def test_the_command_to_write_asks_for_the_cpus_of_all_tasks() -> None:
    environ = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_PROCID": "0", "SLURM_CPUS_PER_TASK": "2"}
    assert "--ntasks-per-node=1 --cpus-per-task=16 elastic run" in str(refused(environ).hint)


def test_without_a_shared_directory_the_store_is_on_the_first_node_and_never_on_the_login_node() -> None:
    flags = found(STEP, shared=None)
    assert (flags["rdzv_backend"], flags["rdzv_endpoint"]) == ("c10d", "node0:23390")


def test_steps_of_one_job_and_jobs_that_follow_each_other_have_ports_of_their_own() -> None:
    ports = [port_of(str(job), str(step)) for job in (1_077, 1_078) for step in range(31)]
    assert len({*ports}) == 62
    assert len({port_of(str(job), "0") for job in range(123_456, 133_456)}) == 10_000
    cases = (("9999", "0"), ("10000", None), ("123456789", "3"), ("x", "batch"))
    assert [port_of(*case) for case in cases] == [29_969, 20_000, 20_462, 20_000]


@pytest.mark.parametrize(
    ("more", "nproc"),
    [
        pytest.param({}, None, id="a job without GPUs: core's default, one"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1"}, None, id="devices that are the user's own word"),
        pytest.param({**GPUS, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "8", id="--gpus-per-node"),
        pytest.param({**GPUS, "CUDA_VISIBLE_DEVICES": "3", "SLURM_GPUS_PER_TASK": "1"}, "1", id="--gpus-per-task"),
        pytest.param({**GPUS, "ROCR_VISIBLE_DEVICES": "0,1"}, "2", id="AMD's"),
        pytest.param(GPUS, "8", id="Slurm sets no devices"),
        pytest.param({**GPUS, "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "8", id="Slurm has no device files"),
        pytest.param({**GPUS, "CUDA_VISIBLE_DEVICES": ""}, None, id="none of them for this task"),
        pytest.param({**GPUS, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "2", id="by uuid"),
    ],
)
def test_each_node_starts_a_worker_for_each_gpu_that_its_task_was_given(
    more: dict[str, str], nproc: str | None
) -> None:
    assert found({**STEP, **more}).get("nproc_per_node") == nproc


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        pytest.param({"nnodes": "2:4"}, {"nnodes"}, id="nnodes"),
        pytest.param({"rdzv_id": "mine"}, {"rdzv_id"}, id="the job's id"),
        pytest.param({"rdzv_backend": "etcd"}, {"rdzv_backend", "rdzv_endpoint"}, id="a backend"),
        pytest.param({"rdzv_endpoint": "node1:29400"}, {"rdzv_backend", "rdzv_endpoint"}, id="an endpoint"),
        pytest.param({"master_addr": "node1"}, {"rdzv_backend", "rdzv_endpoint"}, id="static"),
        pytest.param({"nnodes": "1"}, {"nnodes", "rdzv_backend", "rdzv_endpoint"}, id="each node for itself"),
        pytest.param({"standalone": False}, set(), id="PET_STANDALONE=0"),
        pytest.param({"preemption_grace": 0.0}, {"preemption_grace"}, id="another flag"),
        pytest.param(
            {"standalone": True},
            {"nnodes", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "rdzv_conf"},
            id="a job of one node",
        ),
    ],
)
def test_flags_that_are_given_win(given: dict[str, object], absent: set[str]) -> None:
    assert found(STEP).keys() - found(STEP, given).keys() == absent


def test_a_job_of_one_node_needs_no_place_to_meet_and_no_srun() -> None:
    one = {**JOB, "SLURM_JOB_NODELIST": "node2", "SLURM_JOB_NUM_NODES": "1"}
    assert found(one).keys() == {
        "nnodes",
        "rdzv_id",
        "signals_to_handle",
        "preemption_grace",
        "shutdown_timeout",
    }
    assert (found(one)["nnodes"], found(one)["rdzv_id"]) == ("1", "1077")


def test_tasks_of_an_array_are_jobs_of_their_own_unless_the_id_says_otherwise() -> None:
    assert found(ARRAY)["rdzv_id"] == "1077.3"
    flags = found(ARRAY, {"rdzv_id": "1070"})
    assert (flags["nnodes"], flags["rdzv_backend"], "rdzv_id" in flags) == ("1:8", "file", False)


def test_an_array_needs_a_store_that_outlives_its_tasks() -> None:
    here = allocation.read(ARRAY)
    assert here is not None
    with pytest.raises(UsageError, match="The tasks of job array 1070 have no place where they meet") as caught:
        flag_defaults(here, {"rdzv_id": "1070"}, lambda: None)
    assert "ELASTIC_SHARED_DIRECTORY" in str(caught.value.hint)


def test_a_heterogeneous_job_is_one_list_of_nodes() -> None:
    het = {
        **STEP,
        "SLURM_HET_SIZE": "2",
        "SLURM_STEP_NODELIST": "node[0,2-3]",
        "SLURM_JOB_NODELIST": "node[0,2-3]",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "node0",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "node[2-3]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    }
    assert found(het)["nnodes"] == "3"
    batch = {**{name: text for name, text in het.items() if "STEP" not in name}, "SLURM_JOB_NODELIST": "node0"}
    assert "srun --het-group=0-1 elastic run …" in str(refused(batch).hint)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(JOB, "Slurm job 1077 has 4 nodes, and `elastic run` was started on node2 alone", id="no srun"),
        pytest.param(
            {name: text for name, text in JOB.items() if name != "SLURMD_NODENAME"},
            "This host is not one of the 4 nodes of Slurm job 1077",
            id="typed on the login node below salloc",
        ),
        pytest.param(
            {**STEP, "SLURM_STEP_NODELIST": "node2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"},
            "Slurm job 1077 has 4 nodes, and this step of srun has node2 alone.",
            id="srun -N1",
        ),
        pytest.param(
            {**STEP, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "node2"},
            "started on node2 alone, without srun",
            id="the shell of an interactive step",
        ),
        pytest.param(
            {**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_PROCID": "0"},
            "srun has started `elastic run` 8 times on node2, once for each task.",
            id="several tasks a node",
        ),
    ],
)
def test_a_process_that_would_be_a_world_of_one_is_refused(environ: dict[str, str], message: str) -> None:
    error = refused(environ)
    assert message in error.message
    assert "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 elastic run …" in str(error.hint)
    for given in ({"nnodes": "4", "rdzv_endpoint": "node2"}, {"standalone": True}):
        assert found(environ, given)


def test_a_number_of_nodes_does_not_make_a_login_node_one_of_them() -> None:
    below_salloc = {name: text for name, text in JOB.items() if name != "SLURMD_NODENAME"}
    here = allocation.read(below_salloc)
    assert here is not None
    with pytest.raises(UsageError, match="This host is not one of the 4 nodes of Slurm job 1077"):
        flag_defaults(here, {"nnodes": "4"}, lambda: None)
    assert flag_defaults(here, {"nnodes": "1"}, lambda: None)
    inside = allocation.read(JOB)
    assert inside is not None
    place = flag_defaults(inside, {"nnodes": "4"}, lambda: None)["rdzv_endpoint"]
    assert place[1] == "the first node of SLURM_JOB_NODELIST"


@pytest.mark.parametrize(
    ("environ", "given", "warned"),
    [
        (STEP, {"nnodes": "1"}, True),
        (STEP, {"standalone": True}, True),
        (STEP, {"nnodes": "4"}, False),
        (STEP, {}, False),
        (JOB, {"standalone": True}, False),
        (ARRAY, {"standalone": True}, False),
    ],
)
def test_a_step_whose_nodes_each_run_a_job_of_their_own_is_told(
    environ: dict[str, str], given: dict[str, object], warned: bool
) -> None:
    here = allocation.read(environ)
    assert here is not None
    text = "Each of the 4 nodes of this step runs a job of its own, because the command says so."
    assert warning(here, given) == (text if warned else None)


def test_gpus_per_task_with_several_tasks_a_node_says_what_to_write() -> None:
    environ = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x4)", "SLURM_GPUS_PER_TASK": "1", "SLURM_PROCID": "0"}
    assert "#SBATCH --ntasks-per-node=1 --gpus-per-node=8" in str(refused(environ).hint)


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_ID": "77"}, {"SLURM_JOB_NODELIST": "node0"}], ids=["none", "an id alone", "nodes alone"]
)
def test_without_the_variables_of_a_job_nothing_is_said(environ: dict[str, str]) -> None:
    assert allocation.read(environ) is None


def test_the_line_names_each_flag_and_where_it_is_from() -> None:
    here = allocation.read(STEP)
    assert here is not None
    line = describe(flag_defaults(here, {"preemption_grace": 1, "signals_to_handle": ()}, lambda: SHARED), here.job)
    assert line == (
        "Slurm job 1077: --nnodes=4 (SLURM_STEP_NODELIST), --rdzv_id=1077.3 (SLURM_JOB_ID and SLURM_STEP_ID), "
        "--rdzv_backend=file (SLURM_SUBMIT_DIR is shared), --rdzv_endpoint=/home/me/.elastic (SLURM_SUBMIT_DIR), "
        "--shutdown_timeout=90 (of 120 s of notice), --rdzv_conf=order=2 (SLURM_PROCID)"
    )
