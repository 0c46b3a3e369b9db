"""Ways in which training jobs fail, beyond the twelve of ``failure_stories``, and what every node must say of them.

Each is taken from what users report of training programs. What is wanted was written down before the story was run.
``tests/test_more_failure_stories.py`` runs them on two nodes of two workers. Unless a story says otherwise it is rank
3 that fails, and the line to be named is marked with HERE.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

HERE = "# HERE"
ANY = frozenset(range(4))
WORTH_RUNNING_AGAIN = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One way to fail, and what must be said of it.

    Attributes:
        script: ``train.py``, or ``train.sh`` where no Python is used.
        files: Other files of the user, beside it.
        outside: A signal that a person or a scheduler sends to rank 3 once it has printed ``ready``.
        no_python: Whether the script is a shell's.
        ranks: Those of which any may be named.
        what: The line ``what`` begins so.
        error: The line ``error`` begins so; '' for no such line; None where it does not matter.
        also: Texts that the summary must have.
        anywhere: Whether it does not matter which line is named.
        peer: Whether the failure follows from the loss of a peer.
        exit_code: Of ``elastic run``.
        torch: How many ranks import torch.
        least: The oldest Python that has what the script uses.
    """

    script: str
    files: Mapping[str, str] = field(default_factory=dict)
    outside: int = 0
    no_python: bool = False
    ranks: frozenset[int] = frozenset({3})
    what: str = "exited with code 1"
    error: str | None = ""
    also: tuple[str, ...] = ()
    anywhere: bool = False
    peer: bool = False
    exit_code: int = 1
    torch: int = 0
    least: tuple[int, int] = (3, 10)

    @property
    def program(self) -> str:
        """The name of its script."""
        return "train.sh" if self.no_python else "train.py"

    @property
    def where(self) -> str:
        """The line to be named, as FILE:LINE; '' for none."""
        for name, text in {self.program: self.script, **self.files}.items():
            for number, line in enumerate(text.splitlines(), 1):
                if line.endswith(HERE):
                    return f"{name}:{number}"
        return ""


def alone(body: str) -> str:
    """Make a script whose last rank does this, while the others wait."""
    return f"""\
import os
import signal

if os.environ["RANK"] != os.environ["LAST"]:
    signal.pause()  # as in a collective
{body}"""


SURVIVED = """\
import logging

try:
    open("cache/index.json")
except OSError:
    logging.exception("there is no cache; the run goes on without it")
"""
"""An exception that is logged, and ends nothing."""

GLOO = """\
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
last = os.environ["RANK"] == os.environ["LAST"]
dist.all_reduce(torch.ones(1))
"""

STORIES: Mapping[str, Story] = {
    # Exceptions in odd places ----------------------------------------------------------------------------------------
    "loader": Story(  # torch.utils.data wraps what its worker raises
        script=alone("""\
from torch.utils.data import DataLoader


class Images:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"image {index} is truncated (3 bytes not processed)")  # HERE


for batch in DataLoader(Images(), num_workers=1):
    print(batch)
"""),
        error="ValueError: image 0 is truncated (3 bytes not processed)",
        torch=1,
    ),
    "loader-killed": Story(
        script=alone("""\
from torch.utils.data import DataLoader


class Images:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


for batch in DataLoader(Images(), num_workers=1):  # HERE
    print(batch)
"""),
        error="RuntimeError: DataLoader worker (pid",
        also=("num_workers",),
        torch=1,
    ),
    "hook": Story(  # a callback that C++ calls
        script=alone("""\
import torch

weight = torch.ones(2, requires_grad=True)


def clip(gradient):
    raise ValueError("the gradient's norm is inf")  # HERE


weight.register_hook(clip)
weight.sum().backward()
"""),
        error="ValueError: the gradient's norm is inf",
        torch=1,
    ),
    "compiled": Story(
        script=alone("""\
import torch


def forward(x, weight):
    hidden = x * 2
    return hidden @ weight  # HERE


torch.compile(forward, backend="eager")(torch.ones(2, 4), torch.ones(3, 5))
"""),
        error=None,
        also=("[2, 4] X [3, 5]",),
        torch=1,
    ),
    "thread": Story(  # a prefetching thread dies, and the main thread notices it
        script=alone("""\
import sys
import threading


def prefetch():
    raise FileNotFoundError(2, "No such file or directory", "shard-00017.tar")  # HERE


thread = threading.Thread(target=prefetch, daemon=True)
thread.start()
thread.join()
sys.exit(1)
"""),
        error="FileNotFoundError: [Errno 2] No such file or directory: 'shard-00017.tar'",
    ),
    "thread-survived": Story(  # a thread of a logger dies, which ends nothing; much later something else does
        script=alone("""\
import threading


def upload():
    raise TimeoutError("the metrics server does not answer")


thread = threading.Thread(target=upload)
thread.start()
thread.join()
rate = {"warmup": 1}["decay"]  # HERE
"""),
        error="KeyError: 'decay'",
    ),
    "atexit": Story(
        script=alone("""\
import atexit


def finish():
    raise BrokenPipeError(32, "Broken pipe")


atexit.register(finish)
raise ValueError("expected 2 classes, got 3")  # HERE
"""),
        error="ValueError: expected 2 classes, got 3",
    ),
    "del": Story(  # what Python ignores stands last on stderr
        script=alone("""\
class Reader:
    def __del__(self):
        raise AttributeError("'Reader' object has no attribute '_pool'")


reader = Reader()
raise ValueError("Input contains NaN")  # HERE
"""),
        error="ValueError: Input contains NaN",
    ),
    "with": Story(  # a context manager that cleans up fails as well; the first of the two is the cause
        script=alone("""\
class Run:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        raise RuntimeError("cannot finish the run: the step was never closed")


with Run():
    raise ValueError("the loss is nan at step 12")  # HERE
"""),
        error=None,
        anywhere=True,
        also=("ValueError: the loss is nan at step 12", "RuntimeError: cannot finish the run"),
    ),
    "task-group": Story(
        script=alone("""\
import asyncio


async def fetch(shard):
    await asyncio.sleep(0)
    raise KeyError(shard)  # HERE


async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fetch("shard-17"))


asyncio.run(main())
"""),
        error=None,
        also=("KeyError: 'shard-17'",),
        least=(3, 11),
    ),
    "pool": Story(  # as Dataset.map(num_proc=2): the exception comes from another process
        script=alone("""\
from multiprocessing import get_context


def tokenize(text):
    return text["input_ids"]  # HERE


with get_context("fork").Pool(1) as pool:
    pool.map(tokenize, [{"text": "hello"}])
"""),
        error="KeyError: 'input_ids'",
    ),
    "library": Story(  # raised deep in a library: the user's own line is wanted
        script=alone("""\
import json


def configure(text):
    return json.loads(text)  # HERE


configure('{"lr": 1e-3,}')
"""),
        error="json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 13",
    ),
    "trainer": Story(  # a trainer catches everything, cleans up, and raises again
        script=alone("""\
from trainer import Trainer


def training_step(batch):
    return batch["labels"]  # HERE


Trainer().fit(training_step)
"""),
        files={
            "trainer.py": """\
class Trainer:
    def fit(self, step):
        try:
            self._run(step)
        except BaseException:
            self._teardown()
            raise

    def _run(self, step):
        step({"input_ids": [1, 2]})

    def _teardown(self):
        try:
            raise RuntimeError("no process group")
        except RuntimeError:
            pass
"""
        },
        error="KeyError: 'labels'",
    ),
    "trainer-wraps": Story(  # … or raises an exception of its own from it
        script=alone("""\
class TuneError(Exception):
    pass


def training_step(batch):
    return batch["labels"]


try:
    training_step({})
except Exception as error:
    raise TuneError("the trial failed at step 3") from error
"""),
        error=None,
        anywhere=True,
        also=("TuneError: the trial failed at step 3", "KeyError: 'labels'"),
    ),
    "handling": Story(  # a defect in the code that handles an expected exception
        script=alone("""\
class Config:
    pass


try:
    {}["lr"]
except KeyError:
    print(Config().default_lr)  # HERE
"""),
        error="AttributeError: 'Config' object has no attribute 'default_lr'",
    ),
    # Odd texts -------------------------------------------------------------------------------------------------------
    "subprocess": Story(
        script=alone("""\
import subprocess

subprocess.run(["sh", "-c", "echo fatal: not a git repository >&2; exit 128"], check=True)  # HERE
"""),
        error="subprocess.CalledProcessError: Command '['sh', '-c',",
        also=("returned non-zero exit status 128",),
    ),
    "newlines": Story(
        script=alone("""\
raise RuntimeError("\\n\\n    CUDA Setup failed despite GPU being available.\\n    Run bitsandbytes\\n")  # HERE
"""),
        error="RuntimeError: CUDA Setup failed despite GPU being available.",
    ),
    "quoted": Story(  # as joblib, ray and accelerate do
        script=alone('''\
REMOTE = """The worker raised:
Traceback (most recent call last):
  File "/opt/ray/worker.py", line 99, in execute
    fetch(shard)
ConnectionResetError: [Errno 104] Connection reset by peer
"""
raise RuntimeError(REMOTE)  # HERE
'''),
        error="RuntimeError: The worker raised:",
    ),
    "long": Story(  # 200 lines, of which the first says what is wrong
        script=alone("""\
lines = [f"    size mismatch for layer.{n}: torch.Size([8]) from checkpoint, torch.Size([4])" for n in range(200)]
raise RuntimeError("Error(s) in loading adapter for Llama:\\n" + "\\n".join(lines))  # HERE
"""),
        error="RuntimeError: Error(s) in loading adapter for Llama:",
    ),
    "notes": Story(
        script=alone("""\
try:
    raise ValueError("could not convert string to float: 'n/a'")  # HERE
except ValueError as error:
    error.add_note("in row 812 of train.csv")
    raise
"""),
        error="ValueError: could not convert string to float: 'n/a'",
        also=("in row 812 of train.csv",),
        least=(3, 11),
    ),
    "no-message": Story(
        script=alone("""\
batch = []
assert batch  # HERE
"""),
        error="AssertionError",
    ),
    "str-raises": Story(  # an exception that cannot be shown
        script=alone("""\
class ApiError(Exception):
    def __str__(self):
        return self.response.text


raise ApiError("503")  # HERE
"""),
        error="ApiError",
    ),
    "surrogate": Story(  # a file's name that is no UTF-8
        script=alone("""\
open(b"data/caf\\xe9.jpg")  # HERE
"""),
        error="FileNotFoundError: [Errno 2] No such file or directory: ",
    ),
    "surrogate-text": Story(  # a text that cannot be encoded
        script=alone("""\
raise ValueError("cannot tokenize 'caf\\udce9'")  # HERE
"""),
        error="ValueError: cannot tokenize 'caf",
    ),
    # Files -----------------------------------------------------------------------------------------------------------
    "torn": Story(
        script=alone("""\
import torch

torch.save({"weight": torch.ones(1000)}, "last.pt")
os.truncate("last.pt", 3000)
torch.load("last.pt")  # HERE
"""),
        error="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        also=("The file is cut off",),
        torch=1,
    ),
    "torn-pickle": Story(
        script=alone("""\
import pickle

with open("state.pkl", "wb") as file:
    file.write(pickle.dumps(list(range(1000)))[:700])
with open("state.pkl", "rb") as file:
    pickle.load(file)  # HERE
"""),
        error="_pickle.UnpicklingError: pickle data was truncated",
    ),
    "wrong-model": Story(
        script=alone("""\
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 2))
model.load_state_dict(torch.nn.Linear(4, 3).state_dict())  # HERE
"""),
        error="RuntimeError: Error(s) in loading state_dict for Sequential",
        also=('Missing key(s) in state_dict: "0.weight", "0.bias"',),
        torch=1,
    ),
    "no-file": Story(
        script=alone("""\
def resume(path):
    with open(path, "rb") as file:  # HERE
        return file.read()


resume("checkpoints/last.ckpt")
"""),
        error="FileNotFoundError: [Errno 2] No such file or directory: 'checkpoints/last.ckpt'",
    ),
    "disk-full": Story(
        script=alone("""\
with open("/dev/full", "wb", buffering=0) as file:
    file.write(bytes(4096))  # HERE
"""),
        error="OSError: [Errno 28] No space left on device",
        also=("df -h",),
        exit_code=WORTH_RUNNING_AGAIN,
    ),
    "descriptors": Story(  # nothing can be opened any more, by Elastic neither
        script=alone("""\
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
files = []
while True:
    files.append(open("/dev/null"))  # HERE
"""),
        error="OSError: [Errno 24] Too many open files: '/dev/null'",
    ),
    # Programs that cannot start --------------------------------------------------------------------------------------
    "circular": Story(
        script="from model import Model\n\nprint(Model)\n",
        files={
            "model.py": "from layers import Layer\n\n\nclass Model(Layer):\n    pass\n",
            "layers.py": f"from model import Model  {HERE}\n\n\nclass Layer:\n    pass\n",
        },
        ranks=ANY,
        error="ImportError: cannot import name 'Model' from partially initialized module 'model'",
    ),
    "syntax": Story(
        script="import config\n\nprint(config)\n",
        files={"config.py": f'lr = 1e-3\nbatch = {{"size": 8  {HERE}\n'},
        ranks=ANY,
        error="SyntaxError: '{' was never closed",
    ),
    "argparse": Story(
        script="""\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
""",
        ranks=ANY,
        what="exited with code 2",
        error=None,
        anywhere=True,
        also=("train.py: error: the following arguments are required: --data",),
    ),
    # Exits -----------------------------------------------------------------------------------------------------------
    "exit-text": Story(
        script=alone("""\
import sys

sys.exit("ERROR: 0 images were found below /data/train")  # HERE
"""),
        error="ERROR: 0 images were found below /data/train",
    ),
    "exit-after-logging": Story(  # as Hydra does
        script=alone("""\
import logging
import sys


def train():
    raise ValueError("num_heads (7) does not divide hidden_size (64)")  # HERE


try:
    train()
except Exception:
    logging.exception("the run failed")
    sys.exit(5)
"""),
        what="exited with code 5",
        error="ValueError: num_heads (7) does not divide hidden_size (64)",
    ),
    "os-exit": Story(  # nothing is known but the code, and the line
        script=alone("os._exit(4)  # HERE\n"),
        what="exited with code 4",
        error="",
    ),
    "excepthook-exit": Story(  # a tracker's hook sends the exception elsewhere, prints nothing, and ends the process
        script=alone("""\
import sys


def report(kind, error, frames):
    os._exit(1)


sys.excepthook = report
raise ValueError("the vocabulary has 0 tokens")  # HERE
"""),
        error="ValueError: the vocabulary has 0 tokens",
    ),
    "excepthook-box": Story(  # as rich.traceback.install()
        script=alone("""\
import sys


def box(kind, error, frames):
    print("+--- Traceback (most recent call last) ---+", file=sys.stderr)
    print("| ValueError                              |", file=sys.stderr)
    print("+-----------------------------------------+", file=sys.stderr)


sys.excepthook = box
raise ValueError("the vocabulary has 0 tokens")  # HERE
"""),
        error="ValueError: the vocabulary has 0 tokens",
    ),
    "excepthook-broken": Story(
        script=alone("""\
import sys


def report(kind, error, frames):
    raise OSError(101, "Network is unreachable")


sys.excepthook = report
raise ValueError("the vocabulary has 0 tokens")  # HERE
"""),
        error="ValueError: the vocabulary has 0 tokens",
    ),
    "own-log": Story(  # a program that keeps its own log
        script=alone("""\
os.dup2(os.open("own.log", os.O_CREAT | os.O_WRONLY), 2)
raise ValueError("max_steps must be positive")  # HERE
"""),
        error="ValueError: max_steps must be positive",
    ),
    "chdir": Story(  # Hydra works in the directory of the run, where its log is, too
        script=alone("""\
os.makedirs("outputs")
os.chdir("outputs")
os.dup2(os.open("own.log", os.O_CREAT | os.O_WRONLY), 2)
raise ValueError("max_steps must be positive")  # HERE
"""),
        error="ValueError: max_steps must be positive",
    ),
    "exec": Story(  # a launcher in the user's own script
        script=alone("""\
import sys

os.execv(sys.executable, [sys.executable, "main.py"])
"""),
        files={"main.py": f'def main():\n    raise ValueError("lr must be positive")  {HERE}\n\n\nmain()\n'},
        error="ValueError: lr must be positive",
    ),
    # Signals ---------------------------------------------------------------------------------------------------------
    "survived-sigkill": Story(
        script=alone(f"""\
{SURVIVED}
print("ready", flush=True)
signal.pause()
"""),
        outside=signal.SIGKILL,
        what="was killed by SIGKILL",
        error="",
    ),
    "survived-segv": Story(
        script=alone(f"""\
{SURVIVED}
import ctypes

ctypes.string_at(0)  # HERE
"""),
        what="was killed by SIGSEGV",
        error="",
    ),
    "survived-sigterm": Story(
        script=alone(f"""\
{SURVIVED}
print("ready", flush=True)
signal.pause()
"""),
        outside=signal.SIGTERM,
        what="was killed by SIGTERM",
        error="",
    ),
    "segv-thread": Story(  # the thread that crashed is not the first that faulthandler shows, or the main one
        script=alone("""\
import ctypes
import threading


def decode():
    ctypes.string_at(0)  # HERE


thread = threading.Thread(target=decode)
thread.start()
thread.join()
"""),
        what="was killed by SIGSEGV",
        error="",
    ),
    "bus-error": Story(  # as with a full /dev/shm
        script=alone("""\
import mmap

with open("shared", "wb+") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
memory[0] = 1  # HERE
"""),
        what="was killed by SIGBUS",
        error="",
    ),
    "abort": Story(
        script=alone("""\
import ctypes

ctypes.CDLL(None).abort()  # HERE
"""),
        what="was killed by SIGABRT",
        error="",
    ),
    "assertion-in-c": Story(
        script=alone("""\
import ctypes

ctypes.CDLL(None).__assert_fail(b"srcIndex < srcSelectDimSize", b"Indexing.cu", 1236, b"indexSelectLargeIndex")  # HERE
"""),
        what="was killed by SIGABRT",
        error=None,
        also=("Indexing.cu:1236: indexSelectLargeIndex: Assertion `srcIndex < srcSelectDimSize' failed.",),
    ),
    "fatal": Story(
        script=alone("""\
import ctypes

ctypes.pythonapi.Py_FatalError(b"deallocating None")  # HERE
"""),
        what="was killed by SIGABRT",
        error=None,
        also=("deallocating None",),
    ),
    "handlers": Story(  # Lightning's handler: the ranks that Elastic stops raise an exception of their own
        script="""\
import os
import signal


def stop(signum, frame):
    raise RuntimeError(f"signal {signum} was received, and the trainer stops")


signal.signal(signal.SIGTERM, stop)
if os.environ["RANK"] != os.environ["LAST"]:
    signal.pause()
rate = {"warmup": 1}["decay"]  # HERE
""",
        error="KeyError: 'decay'",
    ),
    "interrupt": Story(  # kill -INT of one worker
        script=alone("""\
print("ready", flush=True)
signal.pause()  # HERE
"""),
        outside=signal.SIGINT,
        what="was killed by SIGINT",
        error="",
        anywhere=True,
    ),
    "recursion": Story(
        script=alone("""\
def flatten(tree):
    return flatten([tree])  # HERE


flatten([])
"""),
        error="RecursionError: maximum recursion depth exceeded",
    ),
    "memory": Story(  # an allocation that cannot be met, in a process that has little left
        script=alone("""\
import resource

with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), resource.RLIM_INFINITY))
cache = [bytes(1 << 20)]
while True:
    cache.append(bytes(1 << 20))  # HERE
"""),
        error="MemoryError",
    ),
    # Programs that are not Python ------------------------------------------------------------------------------------
    "shell": Story(
        script="""\
#!/bin/sh
[ "$RANK" = "$LAST" ] || exec sleep 1000
echo "train.sh: cannot stat /data/train.bin" >&2
exit 12
""",
        no_python=True,
        what="exited with code 12",
        error=None,
        also=("train.sh: cannot stat /data/train.bin",),
    ),
    "shell-python": Story(  # a shell script that starts Python, as many launch lines do
        script="""\
#!/bin/sh
[ "$RANK" = "$LAST" ] || exec sleep 1000
python3 main.py
""",
        files={"main.py": f'def main():\n    raise ValueError("lr must be positive")  {HERE}\n\n\nmain()\n'},
        no_python=True,
        error="ValueError: lr must be positive",
    ),
    "shell-program": Story(  # a compiled program that ends by a signal, after a warning
        script="""\
#!/bin/sh
[ "$RANK" = "$LAST" ] || exec sleep 1000
echo "WARNING: the cache is cold: No such file or directory" >&2
kill -SEGV $$
""",
        no_python=True,
        what="was killed by SIGSEGV",
        error="",
    ),
    # Connections that are not a peer's -------------------------------------------------------------------------------
    "helper": Story(
        script=alone("""\
import subprocess

helper = subprocess.Popen(["true"], stdin=subprocess.PIPE, bufsize=0)
helper.wait()
helper.stdin.write(bytes(65536))  # HERE
"""),
        error="BrokenPipeError: [Errno 32] Broken pipe",
    ),
    "own-child": Story(  # a process of a Manager or of a data server is killed
        script=alone("""\
from multiprocessing import get_context

context = get_context("fork")
here, there = context.Pipe()
child = context.Process(target=os._exit, args=(1,))
child.start()
there.close()
here.recv()  # HERE
"""),
        error="EOFError",
    ),
    "http": Story(
        script=alone("""\
import http.client
import socket
import threading

server = socket.create_server(("127.0.0.1", 0))


def serve():
    with server.accept()[0] as client:
        client.recv(4096)


threading.Thread(target=serve, daemon=True).start()
connection = http.client.HTTPConnection(*server.getsockname())
connection.request("GET", "/shard-17.tar")
connection.getresponse()  # HERE
"""),
        error="http.client.RemoteDisconnected: Remote end closed connection without response",
        exit_code=WORTH_RUNNING_AGAIN,
    ),
    "tracker": Story(  # the server of a tracker
        script=alone("""\
import urllib.request

urllib.request.urlopen("http://127.0.0.1:9/api/runs")  # HERE
"""),
        error="urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
        exit_code=WORTH_RUNNING_AGAIN,
    ),
    # Peers -----------------------------------------------------------------------------------------------------------
    "peers": Story(  # the others are in a collective, lose the connection, and fail once more while they clean up
        script=f"""\
{GLOO}

def save():
    open("/no/such/directory/last.pt", "wb")


try:
    if last:
        raise ValueError("label 17 is out of range")  # HERE
    dist.all_reduce(torch.ones(1))
finally:
    if not last:
        save()
""",
        error="ValueError: label 17 is out of range",
        torch=4,
    ),
    "peers-first": Story(  # the rank that is wrong closes its connections, and ends long after its peers
        script=f"""\
{GLOO}
try:
    if last:
        raise ValueError("label 17 is out of range")
    dist.all_reduce(torch.ones(1))  # HERE
finally:
    if last:
        dist.destroy_process_group()
        time.sleep(1)
""",
        ranks=frozenset({0, 1, 2}),
        error="RuntimeError: ",
        peer=True,
        exit_code=WORTH_RUNNING_AGAIN,
        torch=4,
    ),
    "done-early": Story(
        script=f"""\
{GLOO}
for batch in range(3 if last else 4):
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
""",
        what="exited with code 0 before the other ranks",
        error="it had finished when rank",
        torch=4,
    ),
    "timeout": Story(  # one rank hangs; which one cannot be told from the exceptions of the others
        script=f"""\
{GLOO}
group = dist.new_group(timeout=timedelta(seconds=2))
if last:
    signal.pause()
dist.all_reduce(torch.ones(1), group=group)  # HERE
""",
        ranks=frozenset({0, 1, 2}),
        error="RuntimeError: ",
        peer=True,
        exit_code=WORTH_RUNNING_AGAIN,
        torch=4,
    ),
    "killed-peer": Story(  # kill -9 of one rank that is in a collective
        script=f"""\
{GLOO}
if last:
    print("ready", flush=True)
    signal.pause()
dist.all_reduce(torch.ones(1))
""",
        outside=signal.SIGKILL,
        what="was killed by SIGKILL",
        error="",
        torch=4,
    ),
}
