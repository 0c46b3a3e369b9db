"""A plan: one schedule of faults with every choice that was made, to report, shrink, keep and replay."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

ISOLATED = 4
"""The value of ``Plan.lasting_fault`` for a host that reaches the store, but no other host."""


@dataclass(frozen=True, order=True)
class Fault:
    """One fault. The function of its kind explains its numbers (``faults.py``)."""

    at: float
    """Seconds from the beginning."""
    kind: str
    host: int = 0
    span: float = 0.0
    """Duration in seconds, if it has one."""
    value: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.span:g} s" if self.span else ""
        return f"{self.kind} host {self.host}{lasts}" + (f" ({self.value:g})" if self.value else "")


@dataclass(frozen=True)
class Plan:
    """The job, its environment, and the faults."""

    profile: str
    seed: int
    """Seed of choices that are too small to be listed: latencies, and the messages that a lossy channel loses."""
    hosts: int = 3
    min_nodes: int = 1
    max_nodes: int = 3
    sizes: tuple[int, ...] = ()
    """The allowed numbers of nodes of a round; () for all from ``min_nodes`` on."""
    spares: int = 0
    """``--spares``."""
    max_restarts: int = 3
    replace_lost: bool = True
    join_timeout: float = 40.0
    fence_after: float = 60.0
    last_call_timeout: float = 1.0
    clock_rates: tuple[float, ...] = ()
    """Rates of the hosts' clocks; 1.0 for hosts beyond the end."""
    latency: float = 0.002
    """Average seconds of a message."""
    timeout: float = 4.0
    """Timeout of a client of the store, in seconds."""
    peer_loss_noticed: bool = True
    """True if workers fail when a peer does; else they only block."""
    work_seconds: float = 1000.0
    """Seconds of training until the script is done."""
    finish_spread: float = 0.0
    """The most seconds between the first node that finishes and the last."""
    policy_seconds: float = 0.0
    """The most seconds that a failure policy takes."""
    delay: float = 0.0
    """Seconds by which the failure policies delay the round that follows a failure (L11)."""
    exclude_for: float = 0.0
    """Seconds for which they exclude the host of a failure (L12); 0 where they exclude none."""
    has_uid: bool = True
    """True if the scheduler gives the run a uid."""
    step_seconds: float = 0.0
    """Seconds of a step, for workers that take notices; 0 for others."""
    grace: float = 0.0
    """``--preemption_grace``."""
    plan_timeout: float = 300.0
    resize_wait: float = 0.0
    """``--rdzv_conf resize_wait``; 0 if waiting nodes get their places as soon as rule L4 allows."""
    checkpoint_interval: float = 0.0
    """Seconds between checkpoints of a script that takes no notices, as its agents notice them; 0 if they do not."""
    last_checkpoint: int = 0
    """Number of checkpoints after which the script never saves again; 0 if it always does."""
    import_seconds: float = 0.0
    """The most seconds for which a newcomer imports before it joins while a round is live."""
    check_seconds: float = 0.0
    """The most seconds of a node's health checks before it enters (L17); 0 for none."""
    check_failure_rate: float = 0.0
    """The share of checks that fail."""
    may_forget: bool = False
    stale_reads: bool = False
    """True if a replaced master goes on answering, so that only heartbeats that it takes count as contact."""
    guarded: bool = False
    """True if a replaced master refuses writes; else sentinels are asked for the master."""
    embedded: bool = False
    """True if the store lives in host 0's first agent."""
    faults_end_at: float = 60.0
    """The time at which all faults end."""
    liveness: bool = True
    """True if the job is then watched until it reaches its final state; else the plan ends there."""
    replace_agents: bool = True
    """True if missing agents are started at that time."""
    lasting_fault: int = 0
    """The lasting fault of the last host: 1 the way to the store, 2 back, 3 both, 4 (ISOLATED) to other hosts."""
    kept_entries: int = 64
    """Number of newest ledger entries that are never shrunk."""
    value_limit: int = 0
    """The most bytes of an encoded value; 0 if values travel as objects."""
    stale_sentinels: bool = False
    """True if the sentinels keep naming a replaced master."""
    peer_loss_reported: bool = False
    """True if a worker reports the loss of a peer, which separates the cause from its consequences."""
    leader_lifetime: float = 0.0
    """Seconds after which each leader is killed; 0 for never."""
    twin_clock_offset: float | None = None
    """Seconds by which host 1's clock is ahead of host 0's, with the same host id; None if the ids differ."""
    vouching: str = ""
    """Source of vouchers for nodes that are gone: a "right" plugin, a "wrong" one (also for nodes that are cut off),
    "people", or "" for none."""
    has_token: bool = False
    """True if the job has a token, which seals all values; they are encoded then."""
    has_programs: bool = False
    """True if nodes state their program, so that another one under the same job id is noticed."""
    is_unnamed: bool = False
    """True if the job has no given id."""
    idle_nodes: int = 0
    """Number of nodes that only send heartbeats, besides the agents."""
    roster_seconds: float = 0.0
    """Seconds of a read of the whole roster, besides the latency."""
    faults: tuple[Fault, ...] = ()

    def dump(self) -> str:
        """Return the plan as JSON, with one fault in each line."""
        plain = {name: value for name, value in asdict(self).items() if name != "faults"}
        head = json.dumps(plain, indent=1)[:-2]
        lines = [json.dumps([fault.at, fault.kind, fault.host, fault.span, fault.value]) for fault in self.faults]
        return f'{head},\n "faults": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"

    @classmethod
    def load(cls, text: str) -> Plan:
        """Return the plan that :meth:`dump` wrote."""
        plain = json.loads(text)
        plain["faults"] = tuple(Fault(*fault) for fault in plain["faults"])
        plain["clock_rates"] = tuple(plain["clock_rates"])
        plain["sizes"] = tuple(plain.get("sizes", ()))
        unknown = set(plain) - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"a plan has no {', '.join(sorted(unknown))}")
        return cls(**plain)
