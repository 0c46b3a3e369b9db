"""The GPUs of this node, their memory, the processes that hold it, and for which of these the next workers wait.

Three sources, the first that answers: NVML by ``pynvml`` (the distribution nvidia-ml-py), if it is installed;
``nvidia-smi``, if it is on the PATH; the files of AMD's kernel driver. Formats: ``nvidia-smi --help-query-gpu`` and
``--help-query-compute-apps``; https://docs.nvidia.com/deploy/nvml-api; Linux, Documentation/gpu/amdgpu/driver-misc.rst
(``mem_info_vram_total``), drivers/gpu/drm/amd/amdkfd/kfd_process.c (``/sys/class/kfd/kfd/proc``).

The warden has seen all processes of the last round end before the next one starts. What is left are processes that
escaped to another parent, of an earlier job, or of another user. Those of another run, zombies, and those that have
ended are about to let the memory go; others share the GPU, and are only named.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from elastic_core.host import Process, descendants, running_process, state_of
from elastic_devices.inventory import Device, Machine, amd, nvidia
from elastic_devices.visible import gpus as visible_gpus, select
from elastic_health.sizes import format_size

SMI_MAX_SECONDS = 20.0  # for one answer of nvidia-smi; it takes a second where the driver is not persistent
REAP_MAX_SECONDS = 1.0  # for the end of a process after SIGKILL: in state D there is none
LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # each may choose GPUs
KFD = Path("/sys/class/kfd/kfd")
DRM = Path("/sys/class/drm")
COMMAND_CHARACTERS = 80  # of a holder's command line that are shown
SHOWN = 8  # holders that are named, at most
WAITED_SECONDS = 9.0  # a process for which workers have waited for so long, in all, holds up no other round
MOST_FAILURES = 3  # after so many in a row the GPUs are not asked any more


class GpuError(Exception):
    """The GPUs do not answer; the message says which, and how."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. Sizes are in bytes."""

    uuid: str  # ``GPU-…``, or the name of AMD's device
    total: int
    free: int
    address: str = field(default="", compare=False)  # on the PCI bus; '' where its UUID is known


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU."""

    pid: int
    gpu: str  # the UUID
    size: int | None = None  # bytes; None if the driver does not tell
    name: str = ""  # as the driver names it; '' if it does not


class Source(Protocol):
    """Tells of the GPUs of one kind. Both methods raise GpuError if the GPUs do not answer."""

    def gpus(self) -> list[Gpu]:
        """Return all GPUs, in the order of their numbers."""

    def holders(self) -> list[Holder]:
        """Return the processes that hold memory of them."""


def find_source(environ: Mapping[str, str] = os.environ) -> Source | None:
    """Return what tells of this node's GPUs; None on a node without any."""
    with contextlib.suppress(ImportError):
        pynvml = importlib.import_module("pynvml")
        with contextlib.suppress(Exception):  # the driver is not there
            pynvml.nvmlInit()
            return Nvml(pynvml)
    if (program := shutil.which("nvidia-smi", path=environ.get("PATH"))) is not None:
        return Smi(program)
    return Amd() if (KFD / "proc").is_dir() else None


@dataclass(frozen=True, slots=True)
class Nvml:
    """NVML, which is started once and answers in milliseconds."""

    pynvml: Any

    def gpus(self) -> list[Gpu]:
        """Return all GPUs."""
        found = []
        for index, handle in enumerate(self._handles()):
            try:
                memory = self.pynvml.nvmlDeviceGetMemoryInfo(handle)
                found.append(Gpu(self._uuid(handle), int(memory.total), int(memory.free)))
            except self.pynvml.NVMLError as exc:
                raise GpuError(f"GPU {index} does not answer: {exc}") from exc
        return found

    def holders(self) -> list[Holder]:
        """Return the processes that compute on them."""
        found = []
        for handle in self._handles():
            with contextlib.suppress(self.pynvml.NVMLError):
                running = self.pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found += [Holder(int(one.pid), self._uuid(handle), one.usedGpuMemory) for one in running]
        return found

    def _handles(self) -> list[Any]:
        try:
            return [self.pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(self.pynvml.nvmlDeviceGetCount())]
        except self.pynvml.NVMLError as exc:
            raise GpuError(f"NVML does not answer: {exc}") from exc

    def _uuid(self, handle: Any) -> str:
        uuid = self.pynvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


@dataclass(frozen=True, slots=True)
class Smi:
    """``nvidia-smi``, asked for comma-separated values."""

    program: str

    def gpus(self) -> list[Gpu]:
        """Return all GPUs."""
        found = []
        for row in self._ask("--query-gpu=index,uuid,memory.total,memory.free"):
            index, uuid, *sizes = [*row, "", "", "", ""][:4]
            if not all(size.isdecimal() for size in sizes):  # such as [Unknown Error] or [GPU is lost]
                raise GpuError(f"GPU {index or '?'} does not answer: {', '.join(row)}")
            total, free = (int(size) << 20 for size in sizes)
            found.append(Gpu(uuid, total, free))
        return found

    def holders(self) -> list[Holder]:
        """Return the processes that compute on them."""
        found = []
        for row in self._ask("--query-compute-apps=gpu_uuid,pid,used_memory,process_name"):
            if len(row) < 4 or not row[1].isdecimal():
                continue  # a warning, or "No running processes found"
            size = int(row[2]) << 20 if row[2].isdecimal() else None  # [N/A] and the like
            name = ",".join(row[3:])
            found.append(Holder(int(row[1]), row[0], size, "" if name.startswith("[") else name))
        return found

    def _ask(self, query: str) -> list[list[str]]:
        command = [self.program, query, "--format=csv,noheader,nounits"]
        try:
            asked = ask_smi(command, SMI_MAX_SECONDS)
        except subprocess.TimeoutExpired as exc:
            raise GpuError(f"nvidia-smi gave no answer within {SMI_MAX_SECONDS:g} s") from exc
        except OSError as exc:
            raise GpuError(f"nvidia-smi cannot be run: {exc.strerror}") from exc
        if asked.returncode:
            lines = [line.strip() for line in f"{asked.stdout}\n{asked.stderr}".splitlines() if line.strip()]
            raise GpuError(f"nvidia-smi exited with code {asked.returncode}: {lines[-1] if lines else 'no message'}")
        return [row for row in csv.reader(asked.stdout.splitlines(), skipinitialspace=True) if row]


@dataclass(frozen=True, slots=True)
class Amd:
    """The files of AMD's kernel drivers: ``amdgpu`` for memory, ``amdkfd`` for the processes."""

    kfd: Path = KFD
    drm: Path = DRM

    def gpus(self) -> list[Gpu]:
        """Return all GPUs."""
        found = []
        for device in sorted(self.drm.glob("renderD*/device")):
            total, used = (_number(device / f"mem_info_vram_{name}") for name in ("total", "used"))
            if total is not None and used is not None:
                found.append(Gpu(device.parent.name, total, total - used, device.resolve().name))
        return found

    def holders(self) -> list[Holder]:
        """Return the processes that compute on them."""
        found = []
        for file in self.kfd.glob("proc/*/vram_*"):
            size = _number(file)
            if size and file.parent.name.isdecimal():
                found.append(Holder(int(file.parent.name), file.name.removeprefix("vram_"), size))
        return found


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text(encoding="ascii"))
    return None


def visible_uuids(gpus: Sequence[Gpu], environ: Mapping[str, str], machine: Machine) -> frozenset[str]:
    """Return the UUIDs of the GPUs that the workers of this agent see, or see a part of.

    They are those of ``elastic_devices.visible.gpus`` where the machine's devices are those of the source, else those
    that the list names by number or UUID. A list of MIG devices that cannot be mapped to their GPUs stands for all
    GPUs, as ``all``.
    """
    given = {name: text for name, text in environ.items() if name not in LISTS or text.strip().lower() != "all"}
    devices = (*nvidia(machine), *amd(machine))
    known = {name for device in devices for name in (device.address, device.uuid) if name}
    if known & {name for gpu in gpus for name in (gpu.uuid, gpu.address)}:
        seen = {name for one in visible_gpus(given, machine) for name in (one.device.address, one.device.uuid) if name}
        found = {gpu.uuid for gpu in gpus if gpu.uuid in seen or gpu.address in seen}
    else:
        unknown = [Device(address="", uuid=gpu.uuid) for gpu in gpus]
        listed = next((given[name] for name in LISTS if name in given), None)
        found = {one.device.uuid for one in select(listed, unknown)}
    if not found and any(given.get(name, "").strip().startswith("MIG-") for name in LISTS):
        found = {gpu.uuid for gpu in gpus}
    return frozenset(found)


def describe_holder(holder: Holder, proc: Path = Path("/proc")) -> str:
    """Return ``pid 4242 (python train.py, user alice) holds 12.3 GiB of GPU-d018…``."""
    process, command, user = proc / str(holder.pid), holder.name, ""
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        command = re.sub(r"[^ -~]", "?", words)[:COMMAND_CHARACTERS] or command
        owner = process.stat().st_uid
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = str(owner)
    known = [command] if command else []
    known.append(f"user {user}" if user else "not visible here, perhaps of another container")
    size = "memory" if holder.size is None else format_size(holder.size)
    return f"pid {holder.pid} ({', '.join(known)}) holds {size} of {holder.gpu}"


def ask_smi(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run a command for ``limit`` seconds at most, and return what it wrote.

    ``subprocess.run(timeout=...)`` would wait for the end of the process that it kills, which in state D never comes.

    Raises:
        subprocess.TimeoutExpired: It has not ended in time; it was killed, and may still be there.
        OSError: It cannot be run.
    """
    with _in_memory() as out, _in_memory() as err:  # the end of a pipe might never come
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(REAP_MAX_SECONDS)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(list(command), process.returncode, *texts)


def _in_memory() -> BinaryIO:
    return open(os.memfd_create("nvidia-smi"), "w+b")


def no_nvml() -> None:
    """Load no library of the driver: a call to it that hangs would keep the agent from its end."""


MACHINE = Machine(nvml=no_nvml)


class MemoryWait:
    """Says for whom workers wait; called on one thread at a time.

    A process that outlasts one wait is not waited for again: it stays, or shares the GPU on purpose.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[Mapping[str, str]], Source | None] = find_source,
        note: Callable[[str], None] = lambda _: None,
        give_up: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Look for the GPUs of this node with ``find``."""
        self._environ, self._note, self._give_up = environ, note, give_up
        self._failures = 0  # in a row
        self._source = find(environ)
        self._gpus: list[Gpu] = []  # they are asked for once
        self._seen: dict[int, Process] = {}  # holders that were alive here: others are pids of the host
        self._noted: set[Process] = set()
        self._waited: dict[Process, tuple[int, float]] = {}  # the last round that waited, and the seconds of all
        self._asked = (0, 0.0)  # the round of the last question, and how long its workers had waited

    def reason(self, round: int, run_uid: str, waited: float) -> str | None:
        """Return who holds memory that the workers of a round may need; None if they need not wait.

        ``waited`` says for how many seconds the workers of this round have waited; 0 before they are to start.
        """
        if self._source is None:
            return None
        try:
            self._gpus = self._gpus or self._source.gpus()
            visible = visible_uuids(self._gpus, self._environ, MACHINE)
            holders = [one for one in self._source.holders() if one.gpu in visible or not one.gpu.startswith("GPU-")]
        except GpuError as exc:  # here no process is known to hold memory
            self._failures += 1
            if self._failures == MOST_FAILURES:
                self._source = None
                self._give_up(str(exc))
            return None
        self._failures = 0
        last_round, before = self._asked
        more, self._asked = max(0.0, waited - (before if last_round == round else 0.0)), (round, waited)
        own, found = {pid for pid, _ in descendants(os.getpid())} | {os.getpid()}, []
        for one in holders:
            seen = self._process(one.pid)
            if seen is None or one.pid in own or is_of_round(one.pid, run_uid, round):
                continue
            if not is_ending(one.pid):
                if seen not in self._noted:
                    self._noted.add(seen)
                    self._note(describe_holder(one))
            elif self._is_waited_for(seen, round, more):
                found.append(one)
        return "; ".join(describe_holder(one) for one in found[:SHOWN]) or None

    def _process(self, pid: int) -> Process | None:
        """Return the process that has, or had, this pid; None if none was ever seen here: in a container, a host's."""
        if (process := running_process(pid)) is not None:
            self._seen[pid] = process
        elif state_of(pid):  # a zombie
            self._seen.setdefault(pid, (pid, 0))
        return self._seen.get(pid)

    def _is_waited_for(self, process: Process, round: int, more: float) -> bool:
        """Count ``more`` seconds of waiting for a process, unless earlier rounds have waited long enough for it."""
        last, seconds = self._waited.get(process, (round, 0.0))
        if seconds >= WAITED_SECONDS and last != round:
            return False
        self._waited[process] = (round, seconds + more) if more else (last, seconds)
        return True


def is_ending(pid: int) -> bool:
    """Return True if a process has ended, or is of a run of Elastic's, so that its memory may soon be free."""
    if state_of(pid) in ("", "Z", "X"):
        return True
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return False
    except OSError:  # it is gone
        return True
    return b"\0ELASTIC_RUN_UID=" in b"\0" + environ


def is_of_round(pid: int, run_uid: str, round: int, proc: Path = Path("/proc")) -> bool:
    """Return True if a process belongs to this round of the run or a later one: a worker of another agent here."""
    with contextlib.suppress(OSError, ValueError):
        environ = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        named = dict(part.split(b"=", 1) for part in environ if b"=" in part)
        same = named.get(b"ELASTIC_RUN_UID") == run_uid.encode()
        return same and int(named.get(b"ELASTIC_ROUND", b"0")) >= round
    return False
