"""Handles SIGTERM, saves, and exits with 0; ``--how`` says what else it does. In a later round it does not wait."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.synchronize import Event

from report import report


class Stopped(Exception):
    """SIGTERM came."""


def handle(_signum: int, _frame: object) -> None:
    raise Stopped


def wait(ready: Event | None = None) -> None:
    """Wait for the handler, also where the signal comes just before a system call."""
    if ready is not None:
        ready.set()
    while True:
        time.sleep(0.01)


def main(how: str) -> None:
    """Wait, and end."""
    number = int(os.environ["ELASTIC_ROUND"])
    signal.signal(signal.SIGTERM, handle)
    report("started", round=number, worker=os.getpid())
    if how == "signals itself":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "ends a child":
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=wait, args=(ready,))
        child.start()
        ready.wait()
        child.terminate()
        child.join()
    if how == "waits" and number == 1:
        wait()
    report("finished", round=number)


async def serve() -> None:
    """Wait for SIGTERM in a loop of asyncio."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    report("started", round=int(os.environ["ELASTIC_ROUND"]), worker=os.getpid())
    if os.environ["ELASTIC_ROUND"] == "1":
        await stopped.wait()
    report("finished", round=int(os.environ["ELASTIC_ROUND"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", default="waits")
    asked = parser.parse_args().how
    try:
        if asked == "serves":
            asyncio.run(serve())
        else:
            main(asked)
    except Stopped:
        report("saved")
        sys.exit(0)
