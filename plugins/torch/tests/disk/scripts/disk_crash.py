"""Saves a checkpoint again and again, and dies at each of its system calls in turn: ``disk_crash.py FOLDER VARIANT``.

Each life is forked from this process, which has imported torch once. Prints a JSON line for each death: at which call,
and what was found afterwards.

VARIANT is one of:
    kill    SIGKILL before the call,
    torn    SIGKILL in the middle of each write, half of which is done,
    power   the machine stops before the call: of what was not synced, some is lost. Three disks are tried: one that has
            lost all of it, one that has lost only data (as if every rename had been written first), one that has lost
            only names.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elastic_torch.disk import Disk

CALLS = ("open", "write", "fsync", "rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir")
KEEP = 2
OLD = (10, 20)
NEW = 30


def state(step: int) -> dict[str, Any]:
    """Return the state that is saved at a step."""
    return {"weight": torch.full((64, 8), float(step)), "deep": {"step": step, "bias": torch.arange(5) * step}}


def is_whole(found: dict[str, Any], step: int) -> bool:
    """Return True if that is what was saved at this step."""
    expected = state(step)
    return (
        torch.equal(found["weight"], expected["weight"])
        and torch.equal(found["deep"]["bias"], expected["deep"]["bias"])
        and found["deep"]["step"] == step
    )


@dataclass
class Inode:
    """A file (bytes), a link (str) or a directory (names and inodes): as it is, and as it is for sure on the disk."""

    now: Any
    safe: Any = None


@dataclass
class Platter:
    """A disk that knows what has been synced."""

    root: Path
    inodes: dict[int, Inode] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.top = self.adopt(self.root)

    def adopt(self, path: Path) -> int:
        """Take all files that are there for written long ago."""
        if path.is_symlink():
            content: Any = os.readlink(path)
        elif path.is_dir():
            content = {child.name: self.adopt(child) for child in path.iterdir()}
        else:
            content = path.read_bytes()
        return self.add(content, copy.copy(content))

    def add(self, now: Any, safe: Any = None) -> int:
        """A new inode."""
        self.inodes[len(self.inodes)] = Inode(now, safe)
        return len(self.inodes) - 1

    def place(self, path: Any, dir_fd: int | None = None) -> tuple[Inode, str]:
        """The directory that a path is in, and its name there."""
        if dir_fd is not None:
            return self.inodes[self.open[dir_fd]], str(path)
        parts = Path(path).relative_to(self.root).parts
        here = self.inodes[self.top]
        for part in parts[:-1]:
            here = self.inodes[here.now[part]]
        return here, parts[-1] if parts else ""

    def done(self, call: str, result: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A call has been made."""
        match call:
            case "write":
                if (file := self.open.get(args[0])) is not None:
                    self.inodes[file].now += bytes(args[1])[:result]
            case "fsync":
                if (file := self.open.get(args[0])) is not None:
                    self.inodes[file].safe = copy.copy(self.inodes[file].now)
            case "open":
                folder, name = self.place(args[0], named.get("dir_fd"))
                if name and name not in folder.now:
                    folder.now[name] = self.add(b"")
                self.open[result] = folder.now[name] if name else self.top
            case "mkdir" | "symlink":
                folder, name = self.place(args[-1] if call == "symlink" else args[0])
                folder.now[name] = self.add({} if call == "mkdir" else args[0], {} if call == "mkdir" else args[0])
            case "unlink" | "rmdir":
                folder, name = self.place(args[0], named.get("dir_fd"))
                del folder.now[name]
            case _:
                source, old = self.place(args[0])
                target, new = self.place(args[1])
                target.now[new] = source.now[old]
                if call != "link":
                    del source.now[old]

    def write_out(self, target: Path, *, names: str, data: str) -> None:
        """Make a directory of what is left: ``names`` and ``data`` as they are ``now``, or as is ``safe``."""
        self._write_out(self.inodes[self.top], target, names, data)

    def _write_out(self, inode: Inode, target: Path, names: str, data: str) -> None:
        if isinstance(inode.now, dict):
            target.mkdir(parents=True)
            for name, child in (getattr(inode, names) or {}).items():
                self._write_out(self.inodes[child], target / name, names, data)
        elif isinstance(inode.now, str):
            target.symlink_to(inode.now)
        else:
            target.write_bytes(getattr(inode, data) or b"")


DISKS = {
    "lost all": {"names": "safe", "data": "safe"},
    "lost data": {"names": "now", "data": "safe"},
    "lost names": {"names": "safe", "data": "now"},
}


def watch(root: Path, before: Callable[[str, tuple[Any, ...]], None], after: Callable[..., None]) -> None:
    """Have all calls that change something below ``root`` pass by."""
    mine: set[int] = set()

    def wrap(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if call in ("write", "fsync"):
                ours = args[0] in mine
            else:
                ours = named.get("dir_fd") in mine or str(args[-1 if call == "symlink" else 0]).startswith(str(root))
            if not ours:
                return real(*args, **named)
            if call != "open" or args[1] & os.O_CREAT:
                before(call, args)
            result = real(*args, **named)
            if call == "open":
                mine.add(result)
            after(call, result, args, named)
            return result

        return wrapped

    real_close = os.close

    def close(fd: int) -> None:
        mine.discard(fd)
        real_close(fd)

    for call in CALLS:
        setattr(os, call, wrap(call, getattr(os, call)))
    os.close = close


def fork(act: Callable[[], None]) -> int:
    """Let a child do it; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save(root: Path, step: int) -> None:
    """One job that goes on from the newest checkpoint, and saves one step."""
    with Disk(root, keep=KEEP) as disk:
        disk.load()
        disk.save(state(step), step).result()


def examine(root: Path, at: int, what: str) -> None:
    """Print what is found in a directory after a crash, and whether saving goes on there."""
    with Disk(root, read_only=True) as disk:
        loaded = disk.load()
    found = {"at": at, "what": what, "step": loaded.checkpoint.step if loaded else None}
    found["whole"] = loaded is not None and is_whole(loaded.state, loaded.checkpoint.step)
    found["damage"] = [str(item) for item in loaded.damage] if loaded else []
    latest = root / "latest"
    found["latest"] = os.readlink(latest) if latest.is_symlink() else None
    save(root, 40)
    with Disk(root) as disk:
        again = disk.load()
    found["goes on"] = again is not None and is_whole(again.state, 40)
    left = [path.name for path in root.iterdir() if path.name.startswith((".saving", ".removing"))]
    found["left"] = left
    print(json.dumps(found), flush=True)


def die() -> None:
    """End the process at once, as the kernel does."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash_each(work: Path, template: Path, variant: str) -> None:
    """Die at the first call, at the second, and so on until there is none left to die at."""
    real_write = os.write
    at = 0
    while True:
        root = work / f"at-{at}"
        shutil.copytree(template, root, symlinks=True)
        log = work / "call"

        def life(root: Path = root, at: int = at, log: Path = log) -> None:
            count = -1

            def before(call: str, args: tuple[Any, ...]) -> None:
                nonlocal count
                count += variant == "kill" or call == "write"
                if count == at and (variant == "kill" or call == "write"):
                    if variant == "torn":
                        real_write(args[0], bytes(args[1])[: len(args[1]) // 2])
                    log.write_text(f"{call} {args[0]}")
                    die()

            watch(root, before, lambda *_: None)
            save(root, NEW)

        code = fork(life)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        assert fork(lambda root=root, at=at, log=log: examine(root, at, log.read_text())) == 0  # type: ignore[misc]  # its defaults
        shutil.rmtree(root)
        at += 1


def lose_power(work: Path, template: Path) -> None:
    """Save once, and keep what a disk would hold had the power failed before each call."""
    root = work / "live"
    shutil.copytree(template, root, symlinks=True)
    said = work / "calls"

    def life() -> None:
        platter, calls = Platter(root), list[str]()
        busy = False

        def before(call: str, args: tuple[Any, ...]) -> None:
            nonlocal busy
            if busy:
                return
            busy = True
            for disk, survives in DISKS.items():
                platter.write_out(work / f"{len(calls)} {disk}", **survives)
            calls.append(f"{call} {args[0]}")
            said.write_text(json.dumps(calls))
            busy = False

        watch(root, before, platter.done)
        save(root, NEW)

    assert fork(life) == 0
    for at, call in enumerate(json.loads(said.read_text())):
        for disk in DISKS:
            assert fork(lambda at=at, disk=disk, call=call: examine(work / f"{at} {disk}", at, f"{disk}: {call}")) == 0  # type: ignore[misc]  # its defaults
            shutil.rmtree(work / f"{at} {disk}")


def main() -> None:
    """Play it."""
    logging.getLogger("elastic_torch.disk").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder, variant = Path(sys.argv[1]), sys.argv[2]
    template = folder / "template"
    for step in OLD:
        assert fork(lambda step=step: save(template, step)) == 0  # type: ignore[misc]  # its default
    assert stat.S_ISDIR(template.stat().st_mode)
    if variant == "power":
        lose_power(folder, template)
    else:
        crash_each(folder, template, variant)


if __name__ == "__main__":
    main()
