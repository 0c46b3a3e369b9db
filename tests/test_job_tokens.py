"""Jobs with a token: who does not have it can neither join nor decide, over whichever store they meet."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig, command_line, free_port, variable

from elastic_core.exit_codes import ExitCode
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.manager import load_backend
from elastic_core.protocol.codec import decode_entry, encode_entry
from elastic_core.protocol.entries import Entry, Offer, Round
from elastic_core.rendezvous.backend import SEAL_BYTES, Cursor, RendezvousBackend
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE, JobToken
from elastic_core.rendezvous.options import RendezvousParameters

TOKEN, OTHER = secrets.token_hex(32), secrets.token_hex(32)
BACKENDS = ["file", "c10d", *(pytest.param(name, marks=pytest.mark.variant) for name in ("redis", "etcd", "etcd-v2"))]


@contextmanager
def meeting_point(backend: str, folder: Path) -> Iterator[str]:
    """An endpoint where nodes can meet."""
    if backend == "redis":
        from redis_servers import redis_server

        with redis_server(folder / "redis") as server:
            yield server.endpoint
    elif backend.startswith("etcd"):
        from etcd_servers import running

        with running(folder / "etcd") as etcd:
            yield etcd.endpoint
    else:
        yield str(folder / "job") if backend == "file" else f"127.0.0.1:{free_port()}"


def connection(backend: str, endpoint: str, token: str | None) -> RendezvousBackend:
    """A stranger's connection to the job's store, through all of Elastic's own code."""
    made = load_backend(backend, Catalogue.read()).make_rendezvous(
        RendezvousParameters(
            backend=backend,
            endpoint=endpoint,
            run_id="job",
            min_nodes=1,
            max_nodes=2,
            token=None if token is None else JobToken(token.encode(), "a test"),
        )
    )
    assert isinstance(made, RendezvousBackend)
    return made


def newest_entry(reader: RendezvousBackend) -> Entry:
    """The newest entry, which every client can read."""
    data = reader.read(reader.wait(Cursor(), roster=False, timeout=0).head) or b""
    return decode_entry(data if data.startswith(b"{") else data[SEAL_BYTES:])


def forged_after(newest: Entry, port: int) -> Entry:
    """A ROUND of the same members, by the one who decides, whose workers' store is at a port of the forger's."""
    assert isinstance(newest.body, Round), newest
    number = newest.body.number
    body = Round(number=number + 1, same_as=number, offer=Offer("127.0.0.1", port, "forged", hosted=True))
    anchors = replace(newest.anchors, latest=newest.index + 1)
    return replace(newest, index=newest.index + 1, id="forged", prev=newest.id, anchors=anchors, body=body)


def start(rig: Rig, backend: str, endpoint: str, token: str | None, *arguments: object) -> Agent:
    """A node of the job, with a token or without."""
    env = {} if token is None else {TOKEN_VARIABLE: token}
    flags = [f"--rdzv_backend={backend}", f"--rdzv_endpoint={endpoint}", "--rdzv_id=job", "--nnodes=1:2"]
    return rig.run(*flags, *arguments, env=env)


@pytest.mark.everyday("file", "c10d-with another token")
@pytest.mark.parametrize("token", [None, OTHER], ids=["without a token", "with another token"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stranger_who_writes_the_leaders_next_round_is_refused_and_named(
    rig: Rig, tmp_path: Path, backend: str, token: str | None
) -> None:
    with meeting_point(backend, tmp_path) as endpoint, socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        job = [WORKERS / "barrier.py", "--tell=0.2", f"--until={tmp_path / 'done'}"]
        agents = [start(rig, backend, endpoint, TOKEN, "--rdzv_conf=last_call_timeout=30", *job) for _ in range(2)]
        for agent in agents:
            agent.wait_for_report("step", world_size=2)
        workers = [agent.workers() for agent in agents]
        with closing(connection(backend, endpoint, None)) as reader:
            forged = forged_after(newest := newest_entry(reader), trap.getsockname()[1])
        with closing(connection(backend, endpoint, token)) as stranger:
            assert stranger.append(newest.link, forged.link, encode_entry(forged)), "the store itself lets everybody"
        fault = "has no seal" if token is None else "is sealed with another job token"
        for agent in agents:
            agent.wait_for(f"Entry {forged.index} {fault}.* docs/security.md")
            agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
        assert [agent.workers() for agent in agents] == workers
        (tmp_path / "done").touch()
        assert [agent.exit_code() for agent in agents] == [0, 0]
        with pytest.raises(BlockingIOError):
            trap.accept()


@pytest.mark.everyday("file", "c10d-no token")
@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (TOKEN, OTHER, "is sealed with another job token"),
        (TOKEN, None, "is sealed with a job token .*, and this node has none"),
        (None, TOKEN, "has no seal, and this node has a job token"),
    ],
    ids=["another token", "no token", "a token, and the job has none"],
)
@pytest.mark.parametrize("backend", ["file", "c10d"])
def test_a_node_with_another_token_or_none_is_refused_at_once(
    rig: Rig, tmp_path: Path, backend: str, ours: str | None, theirs: str | None, words: str
) -> None:
    with meeting_point(backend, tmp_path) as endpoint:
        job = [WORKERS / "barrier.py", "--tell=0.2", f"--until={tmp_path / 'done'}"]
        agent = start(rig, backend, endpoint, ours, "--rdzv_conf=last_call_timeout=0", *job)
        agent.wait_for_report("step", world_size=1)
        late = start(rig, backend, endpoint, theirs, *job)
        assert late.exit_code() == ExitCode.REFUSED, late.output
        late.wait_for(f"(E|An e)ntry .*{words}")
        late.wait_for("same ELASTIC_JOB_TOKEN")
        (tmp_path / "done").touch()
        assert agent.exit_code() == 0, agent.output
        assert [report["world_size"] for report in agent.reports("training")] == [1], "nobody disturbed it"


def test_a_token_is_shown_nowhere(rig: Rig, tmp_path: Path) -> None:
    job = [WORKERS / "barrier.py", f"--until={tmp_path / 'done'}"]
    logs = ["--log_dir", tmp_path / "logs", "--redirects=3", "--verbose", "--event_log_handler=console"]
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    agents = [
        start(rig, "file", str(tmp_path / "job"), TOKEN, *logs, *job),
        start(rig, "file", str(tmp_path / "job"), None, f"--rdzv_conf=token_file={file}", *logs, *job),
    ]
    for agent in agents:
        agent.wait_for("started")
    commands = {pid: command_line(pid) for pid in rig.processes()}
    above = {commands[agent.pid] for agent in agents}  # a process that one has just forked still has its command
    below = [pid for pid, command in commands.items() if command not in above]
    assert below
    assert [variable(pid, TOKEN_VARIABLE) for pid in below] == [None] * len(below)
    assert TOKEN not in "".join(commands.values())
    (tmp_path / "done").touch()
    assert [agent.exit_code() for agent in agents] == [0, 0]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert TOKEN.encode() not in b"".join(written)
    assert TOKEN not in "".join(agent.output for agent in agents)
