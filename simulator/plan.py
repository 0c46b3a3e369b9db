"""One schedule, with every choice that was made in it: what a failure is reported, shrunk, kept and replayed as."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

ISOLATED = 4
"""The way for a host to be broken in which it reaches the store, and no other host."""


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that happens to a job. What the numbers mean is said where the kind is carried out (``faults.py``)."""

    at: float
    """Seconds from the beginning."""
    kind: str
    host: int = 0
    span: float = 0.0
    """Seconds that it lasts, where it does."""
    value: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.span:g} s" if self.span else ""
        return f"{self.kind} host {self.host}{lasts}" + (f" ({self.value:g})" if self.value else "")


@dataclass(frozen=True)
class Plan:
    """The job, the world that it lives in, and what happens to it."""

    profile: str
    noise: int
    """Seeds what is too small to be listed: latencies, and what a lossy line loses."""
    hosts: int = 3
    min_nodes: int = 1
    max_nodes: int = 3
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes of a round; () for every number from ``min_nodes`` on."""
    spares: int = 0
    """``--spares``."""
    max_restarts: int = 3
    replace_lost: bool = True
    join_timeout: float = 40.0
    fence_after: float = 60.0
    last_call: float = 1.0
    rates: tuple[float, ...] = ()
    """How fast each host's clock runs; 1.0 for those beyond the end."""
    latency: float = 0.002
    """Seconds that a message takes, on average."""
    timeout: float = 4.0
    """Seconds after which a client of the store gives up."""
    peers_notice: bool = True
    """Whether workers fail when a peer does; else they only block."""
    work: float = 1000.0
    """Seconds of whole training until the script is done."""
    spread: float = 0.0
    """Seconds between the first node that is done and the last, at most."""
    thinking: float = 0.0
    """Seconds that the failure policies take."""
    delay: float = 0.0
    """Seconds by which the failure policies delay the round that follows a failure (L11)."""
    exclude_for: float = 0.0
    """Seconds for which they exclude the host of a failure (L12); 0 where they exclude none."""
    uid: bool = True
    """Whether the scheduler gives the run a uid."""
    pace: float = 0.0
    """Seconds of a step, of workers that take notices; 0 for those that do not."""
    grace: float = 0.0
    """``--preemption_grace``."""
    plan_timeout: float = 300.0
    resize_wait: float = 0.0
    """``--rdzv_conf resize_wait``; 0 where waiting nodes get their places as soon as rule L4 allows."""
    saves: float = 0.0
    """Seconds between the checkpoints of a script that takes no notices, which its agents notice; 0 if they do not."""
    last_save: int = 0
    """After how many checkpoints the script, in the whole job, never saves again; 0 if it always goes on."""
    preload: float = 0.0
    """Seconds, at most, that a newcomer imports before it joins where a round is live."""
    check: float = 0.0
    """Seconds, at most, that a node's health checks take before it enters (L17); 0 where there are none."""
    sick: float = 0.0
    """The share of checks that fail."""
    may_forget: bool = False
    stale_reads: bool = False
    """Whether a master that was replaced goes on answering, so that only heartbeats which it takes count as contact."""
    guarded: bool = False
    """Whether it refuses writes from then on; else sentinels are asked whether it is still the master."""
    embedded: bool = False
    """Whether the store lives in host 0's first agent."""
    quiet_at: float = 60.0
    """When everything is made well again."""
    liveness: bool = True
    """Whether it is then watched until the job has got where it must; else it only ends."""
    enough: bool = True
    """Whether enough agents are started then, if too few are left."""
    broken: int = 0
    """What stays broken of the last host when all else is well: 1 the way to the store, 2 back, 3 both, 4 (ISOLATED) to
    other hosts."""
    whole: int = 64
    """The newest entries of the ledger, which do not shrink."""
    limit: int = 0
    """The most bytes that a value may have, which is encoded then; 0 where values travel as they are."""
    misled: bool = False
    """Whether the sentinels go on naming a master that was replaced."""
    peers_tell: bool = False
    """Whether a worker whose peer is gone says so, so that the cause can be told from what follows from it."""
    reign: float = 0.0
    """Seconds after which whoever decides is killed, again and again; 0 where nobody does that."""
    twins: float | None = None
    """Seconds by which the clock of host 1 is ahead of that of host 0, which has the same host id; None: it has not."""
    vouching: str = ""
    """Who vouches that nodes are gone: a plugin that is "right", one that is "wrong" (also of those that are cut off),
    "people", or nobody ("")."""
    token: bool = False
    """Whether the job has a token, with which all that nodes write is sealed; values are encoded then."""
    programs: bool = False
    """Whether nodes say which program they run, so that another one under the same job id is noticed."""
    unnamed: bool = False
    """Whether nobody has named the job."""
    crowd: int = 0
    """Nodes that only heartbeat, besides the agents."""
    look: float = 0.0
    """Seconds that a read of the whole roster takes, besides the latency."""
    faults: tuple[Fault, ...] = ()

    def dump(self) -> str:
        """As JSON, a fault a line."""
        plain = {name: value for name, value in asdict(self).items() if name != "faults"}
        head = json.dumps(plain, indent=1)[:-2]
        lines = [json.dumps([fault.at, fault.kind, fault.host, fault.span, fault.value]) for fault in self.faults]
        return f'{head},\n "faults": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"

    @classmethod
    def load(cls, text: str) -> Plan:
        """Return the plan that :meth:`dump` wrote."""
        plain = json.loads(text)
        plain["faults"] = tuple(Fault(*fault) for fault in plain["faults"])
        plain["rates"] = tuple(plain["rates"])
        plain["sizes"] = tuple(plain.get("sizes", ()))
        unknown = set(plain) - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"a plan has no {', '.join(sorted(unknown))}")
        return cls(**plain)
