"""A Redis master that is cut off and replaced, and goes on answering the nodes on its side (rule S4)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import Host, hosts
from live_rounds import live_spans, lives
from redis_servers import Daemon, running
from rig import WORKERS, Agent, Rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

FENCE_AFTER = 10.0
CONF = f"sentinel=m,beat_interval=0.5,lost_after=2,last_call_timeout=0,fence_after={FENCE_AFTER:g}"


@contextmanager
def replicated(folder: Path, old: Host, new: Host, *, guarded: bool) -> Iterator[tuple[str, list[Daemon]]]:
    """A master and a sentinel on one host, a replica and two sentinels on the other; the sentinels' endpoint."""
    common = ["port {port}", "protected-mode no", "appendonly no", 'save ""', "repl-diskless-sync-delay 0"]
    refuses = ["min-replicas-to-write 1", "min-replicas-max-lag 2"] if guarded else []
    master = Daemon(folder / "master", [*common, *refuses], address=old.ipv4, within=old.command())
    with running(master):
        follow = [*common, f"replicaof {old.ipv4} {master.port}"]
        replica = Daemon(folder / "replica", follow, address=new.ipv4, within=new.command())
        with running(replica):
            replica.wait_for_log("<-> REPLICA sync: Finished")
            watch = [
                "port {port}",
                "protected-mode no",
                f"sentinel monitor m {old.ipv4} {master.port} 2",
                "sentinel down-after-milliseconds m 1000",
                "sentinel failover-timeout m 5000",
            ]
            places = (old, new, new)
            sentinels = [
                Daemon(folder / f"sentinel{n}", watch, sentinel=True, address=host.ipv4, within=host.command())
                for n, host in enumerate(places)
            ]
            with running(*sentinels):
                for sentinel in sentinels:
                    sentinel.wait_for_log(r"\+slave")
                    sentinel.wait_for_log(r"\+sentinel ", count=2)
                yield ",".join(sentinel.endpoint for sentinel in sentinels), sentinels


def run(rig: Rig, host: Host, *arguments: object) -> Agent:
    return rig.start(host.command(sys.executable, "-m", "elastic_core", "run", *map(str, arguments)))


@pytest.mark.everyday("it refuses writes")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("guarded", [True, False], ids=["it refuses writes", "only the sentinels know"])
def test_the_round_on_a_replaced_masters_side_is_over_before_the_next_begins(
    rig: Rig, tmp_path: Path, guarded: bool
) -> None:
    with hosts(2) as (old, new), replicated(tmp_path / "redis", old, new, guarded=guarded) as (endpoint, sentinels):
        signs = tmp_path / "lives"
        signs.mkdir()
        job = ["--nnodes=1:1", "--rdzv_backend=redis", f"--rdzv_endpoint={endpoint}", f"--rdzv_conf={CONF}"]
        job += ["--rdzv_id=job", str(WORKERS / "barrier.py"), "--tell=0.2", "--lives", str(signs)]
        job += ["--until", str(tmp_path / "done")]
        first = run(rig, old, *job)
        first.wait_for_report("training", world_size=1)
        spare = run(rig, new, *job)
        spare.wait_for("the job has all 1 node.s. that it takes")
        old.shut_out(new)
        sentinels[1].wait_for_log(r"\+switch-master")
        spare.wait_for_report("training", world_size=1)
        spare.wait_for_report("step", count=5)
        (tmp_path / "done").touch()
        assert spare.exit_code() == 0, spare.output
        spans = live_spans(lives(signs))
        (_, ended), (began, _) = spans[1], spans[2]
        assert ended < began, (first.output, spare.output)
        first.kill_node()
