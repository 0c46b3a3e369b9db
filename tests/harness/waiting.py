"""Forms in which a rank works or waits for long, and forms in which it hangs.

In each program of two ranks rank 1 runs one form in its third step, while rank 0 waits for it in an all-reduce.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rig import WARM, Agent, Rig

WINDOW, WINDOWS = 3, 4
"""The seconds without progress of the tests, and how many times that a healthy form takes."""
PROGRAM = """\
import asyncio, ctypes, fcntl, hashlib, logging, multiprocessing, os, queue, shutil, signal, socket, subprocess, sys
import threading, time
import torch, torch.distributed as dist

RANK, END = int(os.environ["RANK"]), {seconds}
def lasting():
    until = time.monotonic() + END
    while time.monotonic() < until:
        yield
def compute():
    for _ in lasting():
        sum(range(1000))
def one_call(call, count):
    began = time.monotonic()
    call(count)
    call(int(count * END / (time.monotonic() - began)))
def form():
{form}
if RANK == 1 and {before}:
    form()
dist.init_process_group("gloo")
for step in range(5):
    if RANK == 1 and step == 2 and not {before}:
        form()
    if RANK == 0 or step != {skipped}:
        dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
ALONE = """\
import hashlib, os, sys, time
import elastic_core
import torch.distributed as dist

RANK, END = int(os.environ["RANK"]), {seconds}
def compute():
    until = time.monotonic() + END
    while time.monotonic() < until:
        sum(range(1000))
def one_call(call, count):
    began = time.monotonic()
    call(count)
    call(int(count * END / (time.monotonic() - began)))
def form():
{form}
dist.init_process_group("gloo")
for step in range(int(END / 0.2)):
    elastic_core.report(step=step)
    if RANK == 1 and step == 5:
        form()
        break
    time.sleep(0.2)
dist.barrier()
dist.destroy_process_group()
"""
"""The ranks do not wait for each other until the end, and report their steps; in the sixth one rank 1 runs a form."""
CHILD = 'subprocess.Popen([sys.executable, "-c", {!r}], stdout={})'
TRICKLE = f"import sys, time\nfor _ in range({WINDOWS * WINDOW * 10}): print('x', flush=True); time.sleep(0.1)"
BURN = f"import time\nend = time.time() + {WINDOWS * WINDOW}\nwhile time.time() < end: pass"
NATIVE = "one_call(lambda count: hashlib.pbkdf2_hmac('sha256', b'password', b'salt', count), 200_000)"
COMPUTING = {
    "evaluates": "compute()",
    "computes before the group is made": "compute()",
    "one native call": NATIVE,
    "one native call with the interpreter's lock": "one_call(lambda count: sum(range(count)), 2_000_000)",
    "compiles in a child": CHILD.format(BURN, None) + ".wait()",
    "computes in a process of multiprocessing": "multiprocessing.get_context('fork').Process(target=compute).run()",
    "waits for a pool": "multiprocessing.get_context('fork').Pool(1).apply(compute)",
    "joins a thread that computes": "thread = threading.Thread(target=compute); thread.start(); thread.join()",
    "computes at a known step": "import elastic_core\nfor step in range(4): elastic_core.report(step=step)\n" + NATIVE,
}
"""Healthy forms that take the time of a CPU."""
WRITING = {
    "waits for a service and says so": "for _ in lasting(): time.sleep(0.5); print('not there yet', flush=True)",
    "prints dots": "for _ in lasting(): time.sleep(0.5); print('.', end='', flush=True)",
    "draws a bar": "for _ in lasting(): time.sleep(0.5); sys.stderr.write('\\rloading')",
    "a child prints": CHILD.format(TRICKLE, None) + ".wait()",
    "an event loop prints": "async def f():\n  for _ in lasting(): await asyncio.sleep(0.5); print('x', flush=True)\n"
    "asyncio.run(f())",
    "saves in small pieces": "for _ in lasting():\n  with open('checkpoint', 'wb') as file:\n"
    "    file.write(os.urandom(100_000)); file.flush(); os.fsync(file.fileno()); time.sleep(0.1)",
    "writes a log file": "log = open('log', 'w')\n"
    "for _ in lasting(): time.sleep(0.1); print('x', file=log, flush=True)",
    "reads what a child makes slowly": f"lines = {CHILD.format(TRICKLE, 'subprocess.PIPE')}.stdout\nnext(lines)\n"
    "print('it reads', flush=True)\nfor line in lines: pass",
    "downloads slowly": "one, other = socket.socketpair()\nif not os.fork():\n"
    "  for _ in lasting(): one.send(b'x' * 9000); time.sleep(0.1)\n  os._exit(0)\none.close()\n"
    "with open('data', 'wb', 0) as file:\n"
    "  while got := other.recv(65536): file.write(got)",
    "copies in a child": CHILD.format(
        f"import os, time\nend = time.time() + {WINDOWS * WINDOW}\nwhile time.time() < end:\n"
        "  file = open('copy', 'wb'); file.write(os.urandom(50000)); file.flush(); os.fsync(file.fileno())\n"
        "  time.sleep(0.1)",
        None,
    )
    + ".wait()",
    "reports steps": "import elastic_core\nfor step, _ in enumerate(lasting()): elastic_core.report(step=step); "
    "time.sleep(0.5)",
}
"""Healthy forms that print, write to a file or a pipe, or report steps."""
HEALTHY_ALONE = {
    "evaluates": "compute()",
    "has no more data": "pass",
    "prints": "for _ in range(int(END)): time.sleep(1.0); print('evaluating', flush=True)",
    "one native call": NATIVE,
}
"""The program of rank 1 while rank 0 goes on to newer steps."""
LAST = r"form \(train.py:\d+\)"
ASLEEP = rf"{LAST}|no Python stack: sleeping"
"""A request for the stack would end it, so that only py-spy tells the line, where it is installed."""
HANGS = {
    "sleeps": ("time.sleep(1000)", LAST),
    "a lock twice": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", LAST),
    "a mutex twice": (
        "mutex, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)\n"
        "c.pthread_mutex_lock(mutex); c.pthread_mutex_lock(mutex)",
        LAST,
    ),
    "a mutex twice with the interpreter's lock": (
        "mutex, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)\n"
        "c.pthread_mutex_lock(mutex); c.pthread_mutex_lock(mutex)",
        LAST,
    ),
    "a native sleep": ("ctypes.CDLL(None).sleep(1000)", ASLEEP),
    "a native sleep with the interpreter's lock": ("ctypes.PyDLL(None).sleep(1000)", ASLEEP),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", r"stopped by a signal \(SIGSTOP\)"),
    "sleeps before the group is made": ("time.sleep(1000)", LAST),
    "spins": ("while True: pass", LAST),
    "another collective": ("out = [torch.ones(1)] * 2; dist.all_gather(out, torch.ones(1))", "different collectives"),
    "a queue": ("queue.Queue().get()", r"in get \(queue.py:\d+\).*, called at train.py:\d+"),
    "a pipe": ("os.read(os.pipe()[0], 1)", LAST),
    "a file's lock": ("one, other = open('l', 'w'), open('l', 'w'); fcntl.flock(one, 2); fcntl.flock(other, 2)", LAST),
    "a socket": ("pair = socket.socketpair(); pair[0].recv(1)", LAST),
    "a child": ("subprocess.run(['sleep', '1000'])", r"in run \(subprocess.py:\d+\).*, called at train.py:\d+"),
    "a thread": (
        "thread = threading.Thread(target=time.sleep, args=(1000,)); thread.start(); thread.join()",
        r"in join \(threading.py:\d+\).*, called at train.py:\d+",
    ),
    "a semaphore": ("multiprocessing.Semaphore(0).acquire()", LAST),
    "an event loop": ("asyncio.run(asyncio.sleep(1000))", r"called at train.py:\d+"),
}


def program_alone(form: str, seconds: float = WINDOWS * WINDOW) -> str:
    """Return the program in which rank 1 runs this form while rank 0 goes on, for so many seconds."""
    return ALONE.format(form="\n".join(f"    {line}" for line in form.splitlines()), seconds=seconds)


def program(name: str, seconds: float = WINDOWS * WINDOW) -> str:
    """Return the program in which rank 1 runs this form, for so many seconds if it is a healthy one."""
    form = HANGS[name][0] if name in HANGS else {**COMPUTING, **WRITING}[name]
    body = "\n".join(f"    {line}" for line in form.splitlines())
    skipped = 2 if name == "another collective" else 9
    return PROGRAM.format(form=body, seconds=seconds, before="before" in name, skipped=skipped)


def start(rig: Rig, text: str, *flags: str) -> Agent:
    """Start a job of two ranks that run this program."""
    Path(rig.folder, "train.py").write_text(text)
    return rig.run("--nproc_per_node=2", "--max_restarts=0", "--event_log=console", *flags, "train.py", env=WARM)


def reports(agent: Agent) -> list[dict[str, Any]]:
    """Return the reports of hangs so far."""
    lines = [line for line in agent.output.splitlines() if line.startswith("{")]
    return [event["fields"] for event in map(json.loads, lines) if event["name"] == "hang"]


def check_healthy(rig: Rig, text: str) -> None:
    """Check that a job of this program ends well, and that no rank is blamed for a hang meanwhile."""
    agent = start(rig, text, f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 0, agent.output
    assert not [event for event in reports(agent) if event["rank"] is not None], agent.output
