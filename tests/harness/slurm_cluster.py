"""A real Slurm on one machine: munge, a controller and some nodes, each on a host of its own (``hosts.py``).

Everything lives in one folder and is ended by pid. Needs root, and Debian's packages slurmctld, slurmd, slurm-client
and munge.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Host, hosts
from rig import still_there

PATIENCE = 60.0
LOGIN = "login"
CTLD_PORT, SLURMD_PORT = 6817, 6818
CREDENTIAL_SECONDS = 5  # how long Slurm keeps a requeued job back: as long as the credentials of its last run hold
GRACE_SECONDS = 8  # between the SIGTERM that announces a preemption and the end
SLURMD_TIMEOUT = 6  # seconds after which a node that does not answer is down
CPUS_PER_NODE = 4
GPUS_PER_NODE = 2

CONF = """\
ClusterName=elastic
SlurmctldHost={login}({login_address})
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmdParameters=config_overrides
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={credential}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=8
CompleteWait=0
SlurmdTimeout={slurmd_timeout}
InactiveLimit=0
MinJobAge=600
PropagateResourceLimits=NONE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""


@dataclass
class SlurmCluster:
    """A running Slurm. ``nodes`` are the names of its nodes; ``shared`` is a folder that all of them see."""

    folder: Path
    hosts: Mapping[str, Host]
    environ: Mapping[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, in order."""
        return [name for name in self.hosts if name != LOGIN]

    @property
    def shared(self) -> Path:
        """A folder that all nodes see."""
        return self.folder / "shared"

    # Commands on the login node -------------------------------------------------------------------------------------

    def command(self, name: str, *argv: str) -> list[str]:
        """Return the command line that runs a command on a host, under its name and with the cluster's /etc/hosts."""
        inside = 'mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf && '
        inside += 'hostname "$2" && shift 2 && exec "$@"'
        shell = ["unshare", "--mount", "--uts", "sh", "-c", inside, "sh", str(self.folder), name]
        return self.hosts[name].command(*shell, *argv)

    def call(self, *argv: object, on: str = LOGIN, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            self.command(on, *map(str, argv)),
            env={**self.environ, **(env or {})},
            cwd=self.shared,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE * 3,
        )
        if check and done.returncode:
            raise AssertionError(f"{shlex.join(map(str, argv))} exited with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def submit(self, script: str, *options: object, env: Mapping[str, str] | None = None) -> SlurmJob:
        """Submit a batch script; return its job."""
        number = len(list(self.shared.glob("script-*")))
        path = self.shared / f"script-{number}.sbatch"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}\n")
        options = ("--open-mode=append", f"--output={self.shared}/out-%j.txt", *options)
        job = self.call("sbatch", "--parsable", *options, path, env=env).strip().splitlines()[-1]
        return SlurmJob(self, int(job.partition(";")[0]))

    def wait_for(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Wait until a condition holds; it is looked at ten times a second."""
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {patience:g} s.\n{self.describe()}")
            threading.Event().wait(0.1)

    def describe(self) -> str:
        """Return the state of all jobs and nodes, and the end of the controller's log."""
        texts = [self.call(*argv, check=False) for argv in (("squeue", "-a"), ("sinfo", "-N", "-l"))]
        texts += [path.read_text()[-4000:] for path in sorted(self.shared.glob("out-*.txt"))]
        texts.append((self.folder / "slurmctld.out").read_text()[-2000:])
        return "\n".join(texts)

    # Nodes ----------------------------------------------------------------------------------------------------------

    def pids(self, name: str) -> list[int]:
        """All processes of a host."""
        listed = subprocess.run(["ip", "netns", "pids", self.hosts[name].name], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def kill_node(self, name: str) -> None:
        """End all processes of a node at once, its slurmd among them; it does not come back by itself."""
        self.hosts[name].cut_off()  # so that no socket says goodbye
        while pids := self.pids(name):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if name in self.daemons:
                self.daemons.pop(name).wait()
            still_there(pids, within=5.0)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, name, "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))

    def down(self, name: str) -> None:
        """Say to Slurm at once what it would find out by its timeout: the node is down."""
        self.call("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def revive_node(self, name: str) -> None:
        """Bring a killed node back."""
        self.hosts[name].plug_in()
        self.start_node(name)
        self.call("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.wait_for(lambda: self.state_of(name) in ("idle", "mix", "alloc"), f"{name} comes back")

    def state_of(self, name: str) -> str:
        """Return Slurm's word for the state of a node."""
        return self.call("sinfo", "-h", "-N", "-n", name, "-p", "main", "-o", "%T").strip().rstrip("*")

    def clear(self) -> None:
        """Cancel all jobs, and bring back all nodes."""
        self.call("scancel", "--user=root", check=False)
        for name in self.nodes:
            if name not in self.daemons:
                self.revive_node(name)
        self.call("scancel", "--full", "--signal=KILL", "--user=root", check=False)
        self.wait_for(lambda: not self.call("squeue", "-a", "-h").strip(), "all jobs end")
        self.wait_for(lambda: {self.state_of(name) for name in self.nodes} == {"idle"}, "all nodes are idle")

    # Start and end --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write the files and start all daemons."""
        for name in ("munge", "state", "shared", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(mode=0o755)
        names = [f"{host.ipv4} {name}" for name, host in self.hosts.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # where no server is: an answer at once
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={self.hosts[name].ipv4} CPUs={CPUS_PER_NODE} "
            f"RealMemory=1000 Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
            for name in self.nodes
        )
        (self.folder / "slurm.conf").write_text(
            CONF.format(
                folder=self.folder,
                login=LOGIN,
                login_address=self.hosts[LOGIN].ipv4,
                ctld_port=CTLD_PORT,
                slurmd_port=SLURMD_PORT,
                credential=CREDENTIAL_SECONDS,
                slurmd_timeout=SLURMD_TIMEOUT,
                grace=GRACE_SECONDS,
                nodes=nodes,
            )
        )
        for number in range(GPUS_PER_NODE):  # Slurm numbers a GPU by its file
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        # The controllers of v1 are used on demand only; Slurm needs none here, and finds none in a container.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {name: self.folder / "munge" / name for name in ("socket", "pid", "log", "seed")}
        options = [f"--{name}{'' if name == 'socket' else '-file'}={path}" for name, path in files.items()]
        self._start("munged", LOGIN, "munged", "--foreground", "--force", f"--key-file={key}", *options)
        self.wait_for(files["socket"].exists, "munged starts")
        conf = str(self.folder / "slurm.conf")
        self._start("slurmctld", LOGIN, "slurmctld", "-D", "-f", conf)
        for name in self.nodes:
            self.start_node(name)
        self.wait_for(
            lambda: (
                self.call("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", check=False).strip()
                == str(len(self.nodes))
            ),
            "all nodes are idle",
        )

    def _start(self, daemon: str, host: str, *argv: str) -> None:
        with (self.folder / f"{daemon}.out").open("ab") as out:
            self.daemons[daemon] = subprocess.Popen(
                self.command(host, *argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(self.environ)
            )

    def stop(self) -> None:
        """End every process of every host."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.call("scancel", "--user=root", check=False)
        for name in (*self.nodes, LOGIN):
            while pids := self.pids(name):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for process in self.daemons.values():
                    process.poll()
                still_there(pids, within=1.0)
        for process in self.daemons.values():
            process.wait()


@dataclass(frozen=True)
class SlurmJob:
    """One batch job."""

    cluster: SlurmCluster
    number: int
    path: Path | None = None  # where its output is; None for the cluster's own choice

    @property
    def output(self) -> str:
        """The output of the job, in all of its runs."""
        path = self.path or self.cluster.shared / f"out-{self.number}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def state(self) -> str:
        """Slurm's word for the state of the job, such as RUNNING."""
        return self.shown("JobState")

    def shown(self, field: str) -> str:
        """Return a field of ``scontrol show job``."""
        found = re.search(rf"\b{field}=(\S*)", self.cluster.call("scontrol", "show", "job", self.number))
        assert found, field
        return found[1]

    def wait_for_output(self, text: str, count: int = 1) -> str:
        """Wait until the job's output contains a text so many times; return the output."""
        self.cluster.wait_for(lambda: self.output.count(text) >= count, f"{text!r} in the output of job {self.number}")
        return self.output

    def wait_for_state(self, *states: str) -> str:
        """Wait until the job is in one of these states; return the output."""
        self.cluster.wait_for(lambda: self.state in states, f"job {self.number} is {' or '.join(states)}")
        return self.output

    @property
    def exit_code(self) -> int:
        """The exit code of the batch script; a signal as 128 + its number."""
        code, _, signum = self.shown("ExitCode").partition(":")
        return int(code) or (128 + int(signum) if int(signum) else 0)


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 4) -> Iterator[SlurmCluster]:
    """Start a Slurm of so many nodes, ``node0`` and so on, and a login node that is none of them."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    with ExitStack() as stack:
        names = [LOGIN, *(f"node{number}" for number in range(nodes))]
        found = stack.enter_context(hosts(len(names)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "SLURM_", "SBATCH_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", ""), "/usr/sbin", "/sbin"])
        environ = {**kept, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        cluster = SlurmCluster(folder, dict(zip(names, found, strict=True)), environ)
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster
