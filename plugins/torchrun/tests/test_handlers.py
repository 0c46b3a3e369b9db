"""The handler behind plain torchrun, on a store in memory; the round's store is torch's, and stands aside here."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace

import pytest

from elastic_core.config import rdzv_conf
from elastic_core.config.run import Timing
from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousRefusedError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.host.addresses import HeldPort
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.entries import Leader, Offer
from elastic_core.protocol.ledger import compose
from elastic_core.rendezvous.backend import RendezvousBackend, StoreWarning
from elastic_core.rendezvous.options import RendezvousOptions, RendezvousParameters
from elastic_core.session.ledger_reader import load
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_testing.race import PATIENCE, background
from elastic_torchrun import errors, handlers
from elastic_torchrun.foreign.exchange import parse_answer
from elastic_torchrun.handlers import stores
from elastic_torchrun.handlers.handler import TorchrunHandler, close_run, command_of
from elastic_torchrun.handlers.stores import EXIT_BARRIER
from elastic_torchrun.rendezvous_api import RendezvousHandler, RendezvousInfo


@dataclass
class RoundStore:
    """The store that torch's agents share in a round, as far as the handler touches it."""

    offer: Offer
    served: bool
    kept: dict[str, int]
    lock: Lock

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.kept[key] = self.kept.get(key, 0) + amount
            return self.kept[key]

    def set(self, key: str, value: str) -> None:
        self.kept[key] = len(value)

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: dict[str, dict[str, int]] = defaultdict(dict)
    served: dict[str, threading.Event] = defaultdict(threading.Event)
    lock = Lock()

    def serve(offer: Offer, port: HeldPort) -> RoundStore:
        port.close()
        served[offer.id].set()
        return RoundStore(offer, True, kept[offer.id], lock)

    def connect(offer: Offer) -> RoundStore:
        if not served[offer.id].wait(PATIENCE):
            raise RuntimeError("The client socket has timed out")
        return RoundStore(offer, False, kept[offer.id], lock)

    monkeypatch.setattr(stores, "serve", serve)
    monkeypatch.setattr(stores, "connect", connect)
    yield
    for event in list(served.values()):  # a copy: a connection that was given up may only now ask for its event
        event.set()


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def node(memory: MemoryStore) -> Iterator[Callable[..., TorchrunHandler]]:
    """``node()`` makes the handler of another agent of one job."""
    made = []

    def make(min_nodes: int = 2, max_nodes: int = 2, endpoint: str = "", **timing: float) -> TorchrunHandler:
        params = RendezvousParameters(
            backend="memory", endpoint=endpoint, run_id="job", min_nodes=min_nodes, max_nodes=max_nodes
        )
        read = rdzv_conf.RendezvousConf(timing=Timing(**timing))
        made.append(TorchrunHandler(lambda params: LocalBackend(memory), params, read, None))
        return made[-1]

    yield make
    for each in [background(handler.shutdown) for handler in made]:
        each.result(PATIENCE)


def round_of(handlers: Sequence[RendezvousHandler]) -> list[RendezvousInfo]:
    """Return the rounds of handlers that all ask at once."""
    return [parse_answer(each.result(PATIENCE)) for each in [background(each.next_rendezvous) for each in handlers]]


def told_to_stop(handler: TorchrunHandler) -> None:
    """Ask as torchrun's agent does, until nodes wait."""
    asking = threading.Event()
    while not handler.num_nodes_waiting():
        assert not asking.wait(0.01)


def make_leader(memory: MemoryStore, handler: TorchrunHandler) -> None:
    """Let the agent's node be the leader, and wait until it knows."""
    store, author = LocalBackend(memory), handler._state.row.info.node_id
    while (ledger := load(store, RUNTIME.now())) is not None and ledger.leader != author:
        entry = compose(ledger, Leader(why="a test"), entry_id=RUNTIME.new_id(), author=author, now=RUNTIME.now())
        store.append(ledger.head.link, entry.link, RUNTIME.codec.encode_entry(entry))
    with handler._changed:
        assert handler._changed.wait_for(lambda: handler._state.ledger.leader == author, PATIENCE)


def verdict(store: RendezvousBackend) -> tuple[bool, str]:
    ledger = load(store, 0.0)
    assert ledger is not None
    assert ledger.closed is not None
    return ledger.closed.success, ledger.closed.why


def test_agents_get_one_round_and_its_store_is_served_by_rank_0(node: Callable[..., TorchrunHandler]) -> None:
    handlers = [node(), node()]
    infos = round_of(handlers)
    assert sorted((info.rank, info.world_size, info.store.served) for info in infos) == [(0, 2, True), (1, 2, False)]
    assert len({info.bootstrap_store_info for info in infos}) == 1
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    assert not any(handler.is_closed() for handler in handlers)
    assert {handler.get_backend() for handler in handlers} == {"memory"}


def test_a_failure_on_one_node_ends_the_round_on_all_and_the_next_one_has_another_store(
    node: Callable[..., TorchrunHandler],
) -> None:
    handlers = [node(), node()]
    before = round_of(handlers)
    failed: Future[RendezvousInfo] = background(handlers[1].next_rendezvous)  # its agent restarts its workers
    told_to_stop(handlers[0])
    after = [background(handlers[0].next_rendezvous).result(PATIENCE), failed.result(PATIENCE)]
    assert [info.rank for info in after] == [info.rank for info in before]
    assert {info.store.offer.port for info in after}.isdisjoint(info.store.offer.port for info in before)


@pytest.mark.parametrize("lost", [0, 1])
def test_an_agent_that_does_not_come_to_its_round_is_not_waited_for(
    node: Callable[..., TorchrunHandler], memory: MemoryStore, lost: int
) -> None:
    """The other one is the leader, which restarts both nodes before it can know that one is lost."""
    handlers = [node(min_nodes=1, beat_interval=0.2, lost_after=0.6, last_call_timeout=PATIENCE) for _ in range(2)]
    ranks = {info.rank: handler for info, handler in zip(round_of(handlers), handlers, strict=True)}
    left = ranks[1 - lost]
    make_leader(memory, left)
    ranks[lost]._shut.set()  # it gives no sign of life any more
    assert [info.world_size for info in round_of([left])] == [1]


def test_a_store_that_breaks_once_its_round_is_over_does_not_end_the_next_round(
    node: Callable[..., TorchrunHandler], memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to round 2's store fails only after the node has been given round 3."""
    handlers = [node(), node()]
    ranks = {info.rank: handler for info, handler in zip(round_of(handlers), handlers, strict=True)}
    server, client, connect = ranks[0], ranks[1], stores.connect
    connecting = threading.Event()

    def has_begun(handler: TorchrunHandler, number: int) -> bool:
        """Wait until the handler is to give its agent the round of this number."""
        with handler._changed:
            return handler._changed.wait_for(
                lambda: handler._begun is not None and handler._begun[0].number == number, PATIENCE
            )

    def break_late(offer: Offer) -> RoundStore:
        monkeypatch.setattr(stores, "connect", connect)
        connecting.set()
        assert has_begun(client, 3)
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(stores, "connect", break_late)
    monkeypatch.setattr(stores, "wait", lambda futures, seconds: wait(futures))  # sees the failure before the end
    failed = background(client.next_rendezvous)  # its agent restarts its workers
    told_to_stop(server)
    waiting = background(server.next_rendezvous)
    assert connecting.wait(PATIENCE)
    assert has_begun(server, 2)
    server._workers_are_gone("a test ends round 2")
    infos = [waiting.result(PATIENCE), failed.result(PATIENCE)]
    assert len({info.bootstrap_store_info for info in infos}) == 1
    ledger = load(LocalBackend(memory), RUNTIME.now())
    assert ledger is not None
    assert ledger.round is not None
    assert ledger.round.number == 3


def test_the_job_is_closed_well_once_all_have_entered_the_exit_barrier(
    node: Callable[..., TorchrunHandler], memory: MemoryStore
) -> None:
    handlers = [node(), node()]
    for info in round_of(handlers):
        info.store.add(f"{EXIT_BARRIER}/num_members", 1)
    for each in [background(handler.shutdown) for handler in handlers]:
        assert each.result(PATIENCE)
    assert verdict(LocalBackend(memory))[0]


def test_an_agent_that_gives_up_closes_the_job_for_all(
    node: Callable[..., TorchrunHandler], memory: MemoryStore
) -> None:
    handlers = [node(), node()]
    round_of(handlers)
    assert handlers[1].shutdown()
    told_to_stop(handlers[0])
    with pytest.raises(RendezvousClosedError, match="has given up"):
        handlers[0].next_rendezvous()
    assert handlers[0].is_closed()
    success, why = verdict(LocalBackend(memory))
    assert (success, "has given up" in why) == (False, True)


def test_closing_what_is_closed_changes_nothing(node: Callable[..., TorchrunHandler], memory: MemoryStore) -> None:
    handlers = [node(), node()]
    round_of(handlers)
    handlers[0].set_closed()
    head = memory.head
    close_run(LocalBackend(memory), "somebody", "why", Runtime(new_id=lambda: "id"))
    assert memory.head == head


def test_a_node_that_has_joined_and_cannot_begin_leaves_no_row(memory: MemoryStore) -> None:
    class Lonely(LocalBackend):
        def connect(self) -> LocalBackend:
            raise RendezvousStateError("entry 3 is gone")

    params = RendezvousParameters(backend="memory", endpoint="", run_id="job", min_nodes=1, max_nodes=1)
    read = rdzv_conf.RendezvousConf(timing=Timing())
    handler = TorchrunHandler(lambda params: Lonely(memory), params, read, None)
    with pytest.raises(RendezvousStateError, match="entry 3"):
        handler.next_rendezvous()
    handler.shutdown()
    assert load(LocalBackend(memory), 0.0) is not None, "it had joined"
    assert LocalBackend(memory).roster() == []


class Restarting(LocalBackend):
    """A store whose server is down for the first connections to it, and once more while a node joins."""

    down = 0

    def __init__(self, memory: MemoryStore) -> None:
        self.count_down()
        super().__init__(memory)
        self.warnings = (StoreWarning("It keeps 5 clients at most.", "Raise maxclients."),)

    def count_down(self) -> None:
        if Restarting.down > 0:
            Restarting.down -= 1
            raise RendezvousConnectionError("connection refused")

    def enter(self, node_id: str, value: bytes) -> int:
        self.count_down()
        return super().enter(node_id, value)


def restarting(memory: MemoryStore, join_timeout: float) -> TorchrunHandler:
    where = "redis://:secret@store"
    params = RendezvousParameters(backend="memory", endpoint=where, run_id="job", min_nodes=1, max_nodes=1)
    read = rdzv_conf.RendezvousConf(timing=Timing(join_timeout=join_timeout))
    return TorchrunHandler(lambda params: Restarting(memory), params, read, None)


@pytest.mark.parametrize("when", ["first", "joining"])
def test_a_store_that_restarts_is_waited_for_and_its_warnings_are_shown(
    memory: MemoryStore, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """One refused connection ended torchrun's agent, and what an operator should mend was not said."""
    monkeypatch.setattr(Restarting, "down", 2 if when == "first" else 0)
    handler = restarting(memory, PATIENCE)
    if when == "joining":
        make = handler._connect

        def down_from_then_on(params: RendezvousParameters) -> RendezvousBackend:
            made = make(params)
            Restarting.down = 1
            return made

        monkeypatch.setattr(handler, "_connect", down_from_then_on)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    said = capfd.readouterr().err.splitlines()
    awaited = "[elastic] the store at redis://***@store does not answer; waiting for it for up to 60 s: "
    assert sorted(said) == [
        "[elastic] It keeps 5 clients at most. Raise maxclients.",
        awaited + "connection refused",
    ]


def test_a_store_that_never_comes_is_out_of_reach(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restarting, "down", 1000)
    handler = restarting(memory, 0.2)
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        handler.next_rendezvous()
    handler.shutdown()


def test_too_few_nodes_are_a_timeout(node: Callable[..., TorchrunHandler]) -> None:
    with pytest.raises(RendezvousTimeoutError, match="is closed"):
        node(join_timeout=0.5).next_rendezvous()


def test_other_settings_are_refused(node: Callable[..., TorchrunHandler]) -> None:
    round_of([node(), node()])
    with pytest.raises(RendezvousRefusedError, match="max_nodes"):
        node(max_nodes=3).next_rendezvous()


def test_a_newcomer_whose_address_cannot_be_told_leaves_the_job_alone(
    node: Callable[..., TorchrunHandler], memory: MemoryStore
) -> None:
    running = node(min_nodes=1, last_call_timeout=0)
    round_of([running])
    newcomer = node(min_nodes=1, endpoint="no.such.host.invalid:1")
    with pytest.raises(RendezvousConnectionError, match="cannot be looked up"):
        newcomer.next_rendezvous()
    assert newcomer.shutdown()
    assert not running.is_closed()
    assert len(LocalBackend(memory).roster()) == 1


def test_shutting_down_once_more_says_the_same_and_does_nothing(
    node: Callable[..., TorchrunHandler], memory: MemoryStore
) -> None:
    handlers = [node(), node()]
    round_of(handlers)
    assert [handlers[0].shutdown() for _ in range(2)] == [True, True]

    def breaks() -> None:
        raise RendezvousConnectionError("connection refused")

    handlers[1].set_closed = breaks  # type: ignore[method-assign]
    assert [handlers[1].shutdown() for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (RendezvousTimeoutError, "RendezvousTimeoutError"),
        (RendezvousRefusedError, "RendezvousError"),
        pytest.param(RendezvousClosedError, None, id="no torch"),
    ],
)
def test_an_error_is_caught_as_ours_and_as_torchs(
    monkeypatch: pytest.MonkeyPatch, ours: type[RendezvousError], name: str | None
) -> None:
    kinds: dict[str, type[Exception]] = {"RendezvousError": type("RendezvousError", (Exception,), {})}
    kinds["RendezvousTimeoutError"] = type("RendezvousTimeoutError", (kinds["RendezvousError"],), {})
    monkeypatch.setitem(sys.modules, errors.TORCHS, SimpleNamespace(**kinds) if name else None)
    with pytest.raises(ours, match="too few came") as raised, errors.torchs_errors():
        raise ours("too few came", hint="Start more.")
    assert raised.value.hint == "Start more."
    assert raised.value.exit_code == ours.exit_code
    assert [kind for kind in kinds if isinstance(raised.value, kinds[kind])] == sorted(
        {"RendezvousError", name} if name else set()
    )


def test_an_error_keeps_what_it_says_and_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = type("RendezvousConnectionError", (Exception,), {})
    monkeypatch.setitem(sys.modules, errors.TORCHS, SimpleNamespace(RendezvousConnectionError=torchs))
    cause = OSError("no route")
    with pytest.raises(torchs) as raised, errors.torchs_errors():
        raise RendezvousConnectionError("refused", lasting=True) from cause
    assert isinstance(raised.value, RendezvousConnectionError)
    assert raised.value.lasting
    assert raised.value.__cause__ is cause


def test_shutting_down_before_anything_began_is_no_error(node: Callable[..., TorchrunHandler]) -> None:
    assert node().shutdown()


def test_torchs_parameters_are_read_as_ours(monkeypatch: pytest.MonkeyPatch, memory: MemoryStore) -> None:
    asked = []

    def connect(params: RendezvousParameters) -> LocalBackend:
        asked.append(params)
        return LocalBackend(memory)

    hooks = SimpleNamespace(
        elastic_rendezvous_options=lambda: RendezvousOptions(endpoint="HOST", conf={"color": "a color"}),
        elastic_make_rendezvous=connect,
    )
    monkeypatch.setattr(handlers, "import_module", lambda name: hooks)
    monkeypatch.setenv("ELASTIC_OURS_PASSWORD", "s3cret")
    theirs = SimpleNamespace(
        backend="ours",
        endpoint="host:1",
        run_id="job",
        min_nodes=1,
        max_nodes=1,
        local_addr="127.0.0.1",
        config={"timeout": 900, "color": "red", "last_call_timeout": "0"},
    )
    handler = handlers.handler_of("module")(theirs)
    assert round_of([handler])[0].world_size == 1
    assert handler.get_run_id() == "job"
    assert "ELASTIC_OURS_PASSWORD" not in os.environ, "workers inherit what is there"
    assert handler.use_agent_store
    assert handler.shutdown()
    assert os.environ["ELASTIC_OURS_PASSWORD"] == "s3cret", "the next job of this process needs it, too"
    [params] = asked
    assert (params.endpoint, dict(params.config), params.local_addr) == ("host:1", {"color": "red"}, "127.0.0.1")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/torchrun", "--nnodes=2", "train.py", "--lr", "1"], "train.py"),
        (["/usr/bin/torchrun", "-m", "package.train"], "-m package.train"),
        (["/usr/bin/torchrun", "--no-python", "bash", "run.sh"], "bash run.sh"),
        (["/usr/bin/torchrun", "--run-path", "train.py"], "train.py"),
        pytest.param(["/usr/bin/torchrun", "--a-flag-of-another-torch", "train.py"], "", id="another torch"),
        pytest.param(["/usr/bin/accelerate", "launch", "train.py"], "", id="no torchrun"),
        pytest.param([], "", id="embedded"),
    ],
)
def test_the_command_of_a_torchrun_is_read_from_its_command_line(argv: list[str], name: str) -> None:
    pytest.importorskip("torch")
    assert command_of(argv, "host").name == name


def test_arguments_of_one_program_are_compared_too() -> None:
    pytest.importorskip("torch")
    one, same, other = (
        command_of(["torchrun", "train.py", f"--host={host}", "--lr", rate], host).arguments
        for host, rate in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert one == same != other


def test_programs_of_different_roles_are_told_apart() -> None:
    pytest.importorskip("torch")
    assert command_of(["torchrun", "--role=critic", "train.py"], "host").role == "critic"
