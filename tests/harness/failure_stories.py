"""Twelve ways in which a training job fails: a script for each, and what the last message on every node must say.

``tests/test_failure_stories.py`` runs the scripts on two nodes, and ``tests/data/failure_stories.md`` shows what
Elastic and torchrun print for them. A script's environment has LAST, the last rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KILLED = "was killed by {} ({})"
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One way to fail.

    Attributes:
        title: What happens.
        script: ``train.py``.
        remark: What the page says about it.
        what: The line ``what`` of the summary.
        error: The line ``error``; '' for none, as in the next two.
        where: The line ``where``.
        hint: How the line ``hint`` begins.
        rank: The rank that fails first; None where it can be any.
        exception: The exception's type in ``verdict.json``.
        failure_class: The class of the failure there.
        exit_code: Of ``elastic run``.
        per_node: Workers of each node.
    """

    title: str
    script: str
    remark: str = ""
    what: str
    error: str = ""
    where: str = ""
    hint: str = ""
    rank: int | None = 3
    exception: str = ""
    failure_class: str
    exit_code: int = 1
    per_node: int = 2

    @property
    def last(self) -> int:
        """The last rank of two nodes."""
        return 2 * self.per_node - 1


STORIES: Mapping[str, Story] = {
    "exception": Story(
        title="An exception",
        script="""\
import os
import signal


def step(batch: int) -> None:
    if os.environ["RANK"] == os.environ["LAST"]:
        raise ValueError(f"the loss of batch {batch} is nan")


step(batch=7)
signal.pause()  # the other ranks wait, as in a collective
""",
        what="exited with code 1",
        error="ValueError: the loss of batch 7 is nan",
        where='train.py:7 in step: raise ValueError(f"the loss of batch {batch} is nan")',
        exception="ValueError",
        failure_class="framework",
    ),
    "exit": Story(
        title="`sys.exit(3)`",
        script="""\
import os
import signal
import sys

if os.environ["RANK"] == os.environ["LAST"]:
    sys.exit(3)
signal.pause()
""",
        what="exited with code 3",
        where="train.py:6 in <module>: sys.exit(3)",
        failure_class="unknown",
    ),
    "segv": Story(
        title="SIGSEGV",
        script="""\
import ctypes
import os
import signal

if os.environ["RANK"] == os.environ["LAST"]:
    ctypes.string_at(0)
signal.pause()
""",
        what=KILLED.format("SIGSEGV", "invalid memory access in native code"),
        where="train.py:6 in <module>",
        failure_class="framework",
    ),
    "sigkill": Story(
        title="SIGKILL",
        script="""\
import os
import signal

if os.environ["RANK"] == os.environ["LAST"]:
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
""",
        what=KILLED.format("SIGKILL", "kill -9 by a user, or the kernel's out-of-memory killer: see dmesg"),
        failure_class="infrastructure",
    ),
    "oom": Story(
        title="The kernel's out-of-memory killer",
        script="""\
import os
import signal

if os.environ["RANK"] == os.environ["LAST"]:
    cache = []
    while True:
        cache.append(bytearray(16 << 20))
signal.pause()
""",
        remark="Each node is in a cgroup that has 512 MiB of memory.",
        what="was killed by SIGKILL",
        error="HostOutOfMemory: the kernel killed the worker, because its cgroup has used up 512 MiB",
        hint="Lower num_workers, prefetching or what the dataset holds in memory",
        exception="HostOutOfMemory",
        failure_class="infrastructure",
        exit_code=79,
    ),
    "import": Story(
        title="A module that is not there",
        script="""\
import torchvison

torchvison.models.resnet50()
""",
        remark="All ranks fail at once, and any of them is the first. Some are stopped before they fail, and are not "
        "counted.",
        what="exited with code 1",
        error="ModuleNotFoundError: No module named 'torchvison'",
        where="train.py:1 in <module>: import torchvison",
        rank=None,
        exception="ModuleNotFoundError",
        failure_class="script",
    ),
    "early": Story(
        title="One rank exits with 0, too early",
        script="""\
import contextlib
import os
import signal
import sys

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"

with contextlib.suppress(FileExistsError):
    os.mkfifo("gradients")  # stands for the network between two ranks
if os.environ["RANK"] == os.environ["LAST"]:
    peer = os.open("gradients", os.O_RDONLY)  # is closed when the process has ended, as a connection is
    os.read(peer, 4096)
    sys.exit(0)  # its share of the data is smaller
if os.environ["RANK"] == "0":
    with open("gradients", "wb", buffering=0) as peer:
        try:
            while True:
                peer.write(bytes(4096))
        except BrokenPipeError:
            raise RuntimeError(CLOSED) from None
signal.pause()
""",
        remark="The rank that fails is not the one that is wrong. Its error is what gloo raises.",
        what="exited with code 0 before the other ranks",
        error=f"it had finished when rank 0 on node0 lost a connection (RuntimeError: {CLOSED})",
        hint="All ranks must take the same number of steps",
        failure_class="script",
    ),
    "rank-5": Story(
        title="An error of rank 5 of 8",
        script="""\
import os
import signal

sample = {"image": 1} if os.environ["RANK"] == "5" else {"image": 1, "label": 2}
label = sample["label"]
signal.pause()
""",
        what="exited with code 1",
        error="KeyError: 'label'",
        where='train.py:5 in <module>: label = sample["label"]',
        rank=5,
        exception="KeyError",
        failure_class="script",
        per_node=4,
    ),
    "follower": Story(
        title="A peer dies before the first cause is reported",
        script="""\
import contextlib
import os
import select
import signal

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"

with contextlib.suppress(FileExistsError):
    os.mkfifo("gradients")  # stands for the network between two ranks
if os.environ["RANK"] == os.environ["LAST"]:
    with open("gradients", "rb") as peer:
        follower = os.pidfd_open(int(peer.readline()))
    select.select([follower], [], [])  # as with a core dump: its peer is dead before it is
    raise ValueError("the first cause")
if os.environ["RANK"] == "0":
    with open("gradients", "wb", buffering=0) as peer:
        peer.write(f"{os.getpid()}\\n".encode())
        try:
            while True:
                peer.write(bytes(4096))
        except BrokenPipeError:
            raise RuntimeError(CLOSED) from None
signal.pause()
""",
        remark="Rank 0 has failed before, on the other node, since its connection broke; its error is gloo's.",
        what="exited with code 1",
        error="ValueError: the first cause",
        where='train.py:14 in <module>: raise ValueError("the first cause")',
        exception="ValueError",
        failure_class="framework",
    ),
    "agent": Story(
        title="An agent is killed",
        script="""\
import os
import signal

print("rank", os.environ["RANK"], "trains", flush=True)
signal.pause()
""",
        remark="SIGKILL to the agent of ranks 2 and 3, or to torchrun. The other node waits for a replacement, here "
        "for 6 s (`--rdzv_conf=join_timeout=6`), and then ends. With `--nnodes=1:2` it would go on alone.",
        what="no heartbeat for 3.0 s",
        hint="Look there for what ended the agent or the host",
        failure_class="infrastructure",
        exit_code=75,
    ),
    "terminate": Story(
        title="A C++ exception that nothing catches",
        script="""\
import ctypes
import os
import signal

if os.environ["RANK"] == os.environ["LAST"]:
    libstdcxx = ctypes.CDLL("libstdc++.so.6")
    libstdcxx._ZSt21__throw_runtime_errorPKc(b"no memory left in the pool")
signal.pause()
""",
        what="was killed by SIGABRT",
        error="terminate called after throwing an instance of 'std::runtime_error': what(): no memory left in the pool",
        where="train.py:7 in <module>",
        hint="A native library has a defect or does not fit",
        exception="std::runtime_error",
        failure_class="framework",
    ),
    "cuda": Story(
        title="An error of CUDA",
        script='''\
import os
import signal

ASSERT = """CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
if os.environ["RANK"] == os.environ["LAST"]:
    raise RuntimeError(ASSERT)
signal.pause()
''',
        remark="The text is torch's.",
        what="exited with code 1",
        error="RuntimeError: CUDA error: device-side assert triggered",
        where="train.py:10 in <module>: raise RuntimeError(ASSERT)",
        hint="Check labels against the number of classes",
        exception="RuntimeError",
        failure_class="script",
    ),
}
