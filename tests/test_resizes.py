"""A node that joins a round whose workers save nothing when they are stopped (rule L13)."""

from __future__ import annotations

from pathlib import Path

from rig import WORKERS, Rig

WAIT = 12


def test_nodes_that_come_to_an_older_round_wait_for_company_and_get_their_places_together(
    rig: Rig, file_rendezvous: list[str], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    job = [WORKERS / "barrier.py", "--until", done, "--tell=1"]
    command = ["--nnodes=1:3", f"--rdzv_conf=resize_wait={WAIT}", *file_rendezvous, *job]
    first = rig.run(*command)
    first.wait_for_report("step", count=WAIT + 1, world_size=1)
    others = [rig.run(*command) for _ in range(2)]
    first.wait_for("joins in about [0-9]+ s, or with the next restart: to stop the workers of 1 node.s. now would lose")
    for agent in (first, *others):
        agent.wait_for_report("training", world_size=3)
        assert not agent.reports("training", world_size=2), "both came in with one resize"
    done.touch()
    assert [agent.exit_code() for agent in (first, *others)] == [0, 0, 0]
