"""The 29 failure names of a public study, each as a program that is run or as a reported text, and our class for each.

The study is "Characterization of Large Language Model Development in the Datacenter" (NSDI 2024), table 3, of the
cluster Acme. ``docs/evidence/acme_failures.md`` shows the table; ``REWRITE_TABLES=1`` writes it anew.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from elastic_causes.find import find_cause
from elastic_core.causes import last_lines
from elastic_core.incidents import Action, FailureClass, History, Incident, IncidentKind
from elastic_core.plugins.builtin import MaxRestartsPolicy
from elastic_core.protocol.counters import as_record
from elastic_policies.known_failures import explain

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "acme_failures.md"
GROUPS: Mapping[FailureClass, str] = {
    FailureClass.SCRIPT: "script",
    FailureClass.FRAMEWORK: "framework",
    FailureClass.INFRASTRUCTURE: "infrastructure",
    FailureClass.PEER: "infrastructure",
}
"""The study's group for each class. It has none for the consequence of another worker's failure."""
DISAGREEMENTS: Mapping[str, str] = {
    "CUDA error": "NVIDIA's text means a kernel that accessed memory wrongly, which is mostly the program's fault",
}
"""The names whose class is not the study's group, and why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One name of the study.

    Attributes:
        group: The study's group.
        shown: What the page shows of the text.
        program: The source of a program that fails so; '' where the text was reported by others.
        text: The end of stderr as it was reported.
        source: Where.
        exit_code: The exit code that belongs to ``text``.
    """

    name: str
    group: str
    shown: str
    program: str = ""
    text: str = ""
    source: str = ""
    exit_code: int = 1


GITHUB = "https://github.com/"
DATA_LOADER = """
import os, signal
from torch.utils.data import DataLoader, Dataset

class Tokens(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)  # as the out-of-memory killer does

if __name__ == "__main__":
    for batch in DataLoader(Tokens(), num_workers=1):
        pass
"""
MODEL = """
import os, torch
torch.save(torch.nn.Linear(64, 64).state_dict(), "model.pt")
os.truncate("model.pt", 4096)  # as a writer does that is killed
torch.load("model.pt")
"""
CASES = [
    Case(
        "NVLink error",
        "infrastructure",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        text="RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n",
        source=GITHUB + "MIC-DKFZ/nnUNet/issues/1519",
    ),
    Case(
        "CUDA error",
        "infrastructure",
        "CUDA error: unspecified launch failure",
        text="Traceback (most recent call last):\n"
        '  File "train.py", line 232, in <module>\n'
        "    main()\n"
        '  File "train.py", line 161, in main\n'
        "    model.optimize_parameters(current_step)\n"
        '  File "/home/ubuntu/Desktop/DLSRSingleImage/ESRGAN/BasicSR/codes/models/SR_model.py", line 119, in '
        "optimize_parameters\n"
        "    self.log_dict['l_pix'] = l_pix.item()\n"
        "RuntimeError: CUDA error: unspecified launch failure\n",
        source=GITHUB + "XPixelGroup/BasicSR/issues/211",
    ),
    Case(
        "node failure",
        "infrastructure",
        "CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE",
        text="srun: error: Node failure on jean-zay-iam37\n"
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n"
        "slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***\n",
        source=GITHUB + "huggingface/m4-logs/tree/main/tr_141-hanging",
        exit_code=-15,
    ),
    Case(
        "ECC error",
        "infrastructure",
        "CUDA error: uncorrectable ECC error encountered",
        text="RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        source=GITHUB + "tloen/alpaca-lora/issues/123",
    ),
    Case(
        "network error",
        "infrastructure",
        "NCCL WARN NET/IB : Got completion from peer",
        text="kp-ddp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
        "kp-ddp-worker-0:3468:3905 [4] NCCL INFO transport/net.cc:1302 -> 6\n",
        source=GITHUB + "NVIDIA/nccl/issues/1405",
        exit_code=-6,
    ),
    Case(
        "connection error",
        "infrastructure",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        program="import socket\n"
        "with socket.socket() as free:\n"
        '    free.bind(("127.0.0.1", 0))\n'
        "    socket.create_connection(free.getsockname())\n",
    ),
    Case(
        "S3 storage error",
        "infrastructure",
        "An error occurred (SlowDown) when calling the CompleteMultipartUpload operation",
        text="botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the CompleteMultipartUpload "
        "operation\n",
        source=GITHUB + "ray-project/deltacat/issues/51",
    ),
    Case(
        "NCCL timeout",
        "infrastructure",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE",
        text="[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out.\n",
        source=GITHUB + "hiyouga/LlamaFactory/issues/7396",
        exit_code=-6,
    ),
    Case(
        "NCCL remote error",
        "infrastructure",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        text="torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp"
        ":268, remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgressOpt: Call to recv from 172....<33759> failed : Connection reset by peer\n",
        source=GITHUB + "NVIDIA/nccl/issues/2076",
    ),
    Case("DataLoader killed", "framework", "is killed by signal: Killed", program=DATA_LOADER),
    Case(
        "AttributeError",
        "framework",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        program="image = None\nimage.shape\n",
    ),
    Case(
        "out of memory",
        "framework",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB.",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity "
        "of 23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in "
        "use. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but "
        "unallocated.\n",
        source=GITHUB + "pytorch/pytorch/issues/16417",
    ),
    Case(
        "RuntimeError",
        "framework",
        "RuntimeError: dictionary changed size during iteration",
        program="losses = {0: 1.0}\nfor step in losses:\n    losses[step + 1] = 0.9\n",
    ),
    Case(
        "AssertionError",
        "framework",
        "AssertionError: loss is nan",
        program='loss = float("nan")\nassert loss == loss, f"loss is {loss}"\n',
    ),
    Case(
        "ValueError",
        "framework",
        "ValueError: not enough values to unpack (expected 2, got 1)",
        program="inputs, labels = [1]\n",
    ),
    Case(
        "ZeroDivisionError",
        "framework",
        "ZeroDivisionError: division by zero",
        program="batches = []\nprint(sum(batches) / len(batches))\n",
    ),
    Case("model loading", "framework", "RuntimeError: PytorchStreamReader failed reading zip archive", program=MODEL),
    Case(
        "dataset loading",
        "framework",
        "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset",
        text="datasets.builder.DatasetGenerationError: An error occurred while generating the dataset\n",
        source=GITHUB + "michael-wzhu/ChatMed/issues/8",
    ),
    Case(
        "FileNotFoundError",
        "script",
        "FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'",
        program='open("tokens.bin", "rb")\n',
    ),
    Case("OSError", "script", "OSError: [Errno 36] File name too long", program='open("x" * 300)\n'),
    Case(
        "TypeError",
        "script",
        "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
        program="print(1 + None)\n",
    ),
    Case("NameError", "script", "NameError: name 'optimiser' is not defined", program="optimiser.step()\n"),
    Case(
        "PermissionError",
        "script",
        "PermissionError: [Errno 13] Permission denied: '/etc/passwd'",
        program='import subprocess\nsubprocess.run(["/etc/passwd"])\n',
    ),
    Case(
        "ImportError",
        "script",
        "ImportError: cannot import name 'Tokenizer' from 'collections'",
        program="from collections import Tokenizer\n",
    ),
    Case("KeyError", "script", "KeyError: 'labels'", program='batch = {"input_ids": 1}\nbatch["labels"]\n'),
    Case("SyntaxError", "script", "SyntaxError: invalid syntax", program="def train(:\n    pass\n"),
    Case(
        "argument error",
        "script",
        "error: unrecognized arguments: --learning-rate=3e-4",
        program="import argparse\nargparse.ArgumentParser().parse_args(['--learning-rate=3e-4'])\n",
    ),
    Case(
        "CalledProcessError",
        "script",
        "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.",
        program='import subprocess\nsubprocess.run(["false"], check=True)\n',
    ),
    Case("IndexError", "script", "IndexError: list index out of range", program="shards = []\nprint(shards[0])\n"),
]


@pytest.fixture(scope="module")
def incidents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Incident]:
    """Each name's incident: of a program that was run, or of the text."""
    directory = tmp_path_factory.mktemp("programs")
    return {case.name: incident_of(case, directory) for case in CASES}


def incident_of(case: Case, directory: Path) -> Incident:
    """Make the incident that an agent makes of the end of stderr, in the first round of a job."""
    text, exit_code = case.text, case.exit_code
    if case.program:
        script = directory / f"{re.sub('[^a-z]', '_', case.name.lower())}.py"
        script.write_text(case.program)
        ended = subprocess.run([sys.executable, script], cwd=directory, stderr=subprocess.PIPE, text=True, check=False)
        text, exit_code = ended.stderr, ended.returncode
    detail = last_lines(text.encode(), 4096)
    assert case.shown in detail, detail
    cause = find_cause(exit_code, {}, detail)
    made = Incident(
        kind=IncidentKind.WORKER_FAILED,
        round=1,
        node_id="n",
        host="h",
        after=30.0,
        rank=0,
        exit_code=exit_code,
        message=cause.message,
        exception=cause.exception,
        follows_peer=cause.follows_peer,
        detail=detail,
    )
    return replace(made, explanation=explain(made, cause.text))


@functools.cache
def policy() -> MaxRestartsPolicy:
    """Core's own, which decides where no other is asked for."""
    return MaxRestartsPolicy()


def row_of(case: Case, incident: Incident) -> str:
    """Return the case's line of the page."""
    ours = incident.failure_class
    agreed = GROUPS.get(ours) == case.group
    history = History(restarts=1, max_restarts=3, rounds_without_progress=0, failures=(as_record(incident),))
    verdict = policy().elastic_judge_failure(replace(incident, round=2), history)
    then = "restarts once" if verdict.action is Action.GIVE_UP else "restarts"
    shown = f"`{case.shown}`" + (f" ([reported]({case.source}))" if case.source else "")
    return f"| {case.name} | {shown} | {case.group} | {ours.value}{'' if agreed else ' (!)'} | {then} |"


def test_all_names_of_the_study_are_there() -> None:
    groups = [case.group for case in CASES]
    assert {group: groups.count(group) for group in groups} == {"infrastructure": 9, "framework": 9, "script": 11}
    assert len({case.name for case in CASES}) == 29
    assert all(bool(case.program) != bool(case.text and case.source) for case in CASES)


def test_our_classes_are_the_groups_of_the_study_but_for_the_named_ones(incidents: dict[str, Incident]) -> None:
    wrong = {case.name for case in CASES if GROUPS.get(incidents[case.name].failure_class) != case.group}
    assert wrong == set(DISAGREEMENTS)
    assert len(CASES) - len(wrong) >= 26


def test_the_page_has_the_table_and_says_what_is_wrong(incidents: dict[str, Incident]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    heading = "| name in the study | text | its group | class | without a policy |\n|---|---|---|---|---|\n"
    table = heading + "".join(f"{row_of(case, incidents[case.name])}\n" for case in CASES)
    before, _, rest = page.partition(heading)
    if os.environ.get("REWRITE_TABLES"):
        after = re.sub(r"\A(?:\|.*\n)*", "", rest)
        PAGE.write_text(f"{before}{table}{after}", encoding="utf-8")
    assert table in page or os.environ.get("REWRITE_TABLES")
    peers = [case for case in CASES if incidents[case.name].failure_class is FailureClass.PEER]
    assert f"for {29 - len(DISAGREEMENTS)} of 29. Of these, {len(peers)} are of the class `peer`" in page
    for name, reason in DISAGREEMENTS.items():
        assert f"{name}: {reason}" in page
