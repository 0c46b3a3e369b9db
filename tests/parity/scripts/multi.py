"""Processes that a script starts itself, by every method of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.shared_memory import SharedMemory
from typing import Any, cast

from tell import tell


@dataclass
class Point:
    """A class of the main program, as it is in every process."""

    x: int


def double(point: Point) -> Point:
    return Point(2 * point.x)


def look(queue: Any, name: str) -> None:
    """In the child: what it is, and what its memory holds."""
    main, parent = sys.modules["__main__"], multiprocessing.parent_process()
    memory = SharedMemory(name)
    cast("memoryview[int]", memory.buf)[0] += 1
    memory.close()
    queue.put(
        {
            "main": [main.__name__, getattr(main, "__file__", None), "__mp_main__" in sys.modules],
            "parent": [parent is not None and parent.name, parent is not None and parent.pid == os.getppid()],
            "process": [multiprocessing.current_process().name, multiprocessing.get_start_method(allow_none=True)],
            "argv": sys.argv,
            "path": sys.path,
            "executable": sys.executable,
            "cwd": os.getcwd(),
            "rank": os.environ["RANK"],
        }
    )


def by(method: BaseContext) -> dict[str, Any]:
    """Everything once, by one method."""
    memory = SharedMemory(create=True, size=1)
    queue = method.Queue()
    process = method.Process(target=look, args=(queue, memory.name))  # type: ignore[attr-defined] # every kind has one
    process.start()
    seen = queue.get()
    process.join()
    counted = cast("memoryview[int]", memory.buf)[0]
    memory.close()
    memory.unlink()
    with method.Pool(2) as pool:
        mapped = pool.map(double, [Point(number) for number in range(4)])
    with ProcessPoolExecutor(2, mp_context=method) as executor:
        submitted = [future.result() for future in [executor.submit(double, Point(n)) for n in range(3)]]
    return {
        "child": seen,
        "ended with": process.exitcode,
        "counted": counted,
        "mapped": repr(mapped),
        "submitted": repr(submitted),
        "children": repr(multiprocessing.active_children()),
        "memory": memory.name.lstrip("/") in os.listdir("/dev/shm"),
    }


if __name__ == "__main__":
    point = Point(5)
    tell(pickled=pickle.loads(pickle.dumps(point)) == point, default=multiprocessing.get_start_method())
    for name in sys.argv[1:]:
        tell(**{name: by(multiprocessing.get_context(name))})
