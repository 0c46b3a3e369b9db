"""One node of our protocol, with torchrun's agent in the place of our own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from elastic_core import __version__
from elastic_core.config import (
    DEFAULT_ID,
    Program,
    ProgramKind,
    RendezvousConf,
    arguments_digest,
    inheritable,
    name as name_of,
)
from elastic_core.errors import (
    ElasticError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.host import HeldPort, advertised_address, host_name, installed_versions
from elastic_core.incidents import Action, History, Incident, IncidentKind, Verdict
from elastic_core.protocol import (
    Agreement,
    Body,
    Closed,
    Command,
    Effect,
    Exit,
    Leader,
    Leaving,
    MakeOffer,
    NodeEvent,
    NodeInfo,
    NodeRow,
    NodeState,
    Offer,
    Offered,
    Progressed,
    Round,
    Settings,
    Start,
    Stop,
    Versions,
    Work,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
    advance,
    compose,
    describe_differences,
    row_of,
    step,
)
from elastic_core.rendezvous import RendezvousBackend, RendezvousParameters, protect
from elastic_core.session import (
    FENCE_SHARE,
    FIRST_CONNECTION_SECONDS,
    RUNTIME,
    Runtime,
    Session,
    SessionCalls,
    StoreWait,
    load,
)
from elastic_core.session.join import Applicant, join
from elastic_torchrun.errors import torchs_errors
from elastic_torchrun.handlers import stores
from elastic_torchrun.rendezvous_api import BootstrapStoreInfo, RendezvousHandler, RendezvousInfo
from elastic_torchrun.startup import LAUNCHER

AGREED = ("torchrun",)
"""The text of such nodes in place of their failure policies, so that no ``elastic run`` joins them by mistake."""
TICK = 1.0
"""Seconds between two signs of life of this process. (Of the agent's loop there are none while it stops workers.)"""
SILENT_PROGRESS = 30.0  # seconds for which a round's workers must be alive to count as progress (rule L4)
FAREWELL = 10.0  # seconds that the end may take: for others to close the job, and for this node to leave


class TorchrunHandler(RendezvousHandler):
    """One node of a job, as torchrun's agent sees it; all of its methods are called from the agent's main thread."""

    def __init__(
        self,
        connect: Callable[[RendezvousParameters], RendezvousBackend],
        params: RendezvousParameters,
        read: RendezvousConf,
        scheduler_uid: str | None,
    ) -> None:
        self.asked: Any = None  # the parameters by which a program has asked for it
        self._connect, self._params, self._read, self._uid = connect, params, read, scheduler_uid
        self._runtime = RUNTIME
        self._changed = threading.Condition(threading.RLock())
        """Guards what follows, which the session's threads change, too."""
        self._store: RendezvousBackend | None = None
        self._session: Session | None = None
        self._state: NodeState
        self._row: object = None
        self._begun: tuple[Round, float] | None = None
        """The round to start, or that was started, and when it was."""
        self._fresh = False  # true if that is one which the agent has not been given yet
        self._last = 0
        """The round in which the agent entered its exit barrier; 0 while it has not. Any later one is the others'."""
        self._exit: Exit | None = None
        self._crash: BaseException | None = None
        self._shut = threading.Event()
        self._told = True
        self._address = ""  # the address of this node for the others
        self._secrets: dict[str, str] = {}  # passwords that were taken out of this process' environment
        self._ports: dict[str, HeldPort] = {}
        self._stores: list[object] = []  # those of the newest rounds: workers of the one before may still end

    # What torchrun's agent asks --------------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """Return the backend's name."""
        return self._params.backend

    def get_run_id(self) -> str:
        """Return the job id."""
        return self._params.run_id

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the round's store: a new one each round, which the agent of rank 0's node holds."""
        return True

    @torchs_errors()
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a round is sealed that has this node in it.

        Raises:
            RendezvousClosedError: The job is closed.
            RendezvousTimeoutError: Too few nodes came.
            RendezvousError: This node was refused, or the store cannot be reached for as long as it may take to join.
        """
        if self._session is None:
            self._enrol()
        else:
            self._workers_are_gone("torchrun's agent restarts its workers")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._fresh or self._exit or self._crash)
                self._check()
                if self._exit is not None or self._begun is None:
                    raise self._ended()
                current, _ = self._begun
            try:
                info = self._info(current)
            except RuntimeError as exc:  # torch's, of a network: the store's host is lost, and this round is over
                with self._changed:
                    if self._is_next(current):  # else the job has already gone on, and the next round is sound
                        self._workers_are_gone(f"the store of round {current.number} cannot be reached: {exc}")
                continue
            with self._changed:
                if info is not None and self._is_next(current):
                    self._fresh = False
                    return info

    @torchs_errors()
    def num_nodes_waiting(self) -> int:
        """Return 1 if the workers are to be stopped and the next round be asked for; else 0."""
        with self._changed:
            self._check()
            if self._session is None or self._begun is None:
                return 0
            current, since = self._begun
            now = self._runtime.now()
            if now - since >= SILENT_PROGRESS and not self._state.row.progressed:
                self._step(Progressed(current.number))
            fence = FENCE_SHARE * self._state.ledger.settings.timing.fence_after
            return int(self._state.work is Work.STOPPING or now - self._session.contact.at >= fence)

    def is_closed(self) -> bool:
        """Return True if the job is closed."""
        with self._changed:
            return self._session is not None and self._state.ledger.closed is not None

    @torchs_errors()
    def set_closed(self) -> None:
        """Close the job as failed, unless it is closed."""
        if self._store is not None and self._session is not None:
            info = self._state.row.info
            close_run(self._store, info.node_id, f"torchrun's agent on {info} has given up", self._runtime)

    def shutdown(self) -> bool:
        """Leave the job if the workers here have finished, else close it as failed for all nodes.

        Returns True if the store could be written. A second call does nothing and returns the same.
        """
        if self._shut.is_set():
            return self._told
        try:
            if self._last:  # the last of all to finish closes the job
                with self._changed:
                    self._changed.wait_for(lambda: self._exit or self._crash, FAREWELL)
            else:
                self.set_closed()
        except RendezvousError:
            self._told = False
        finally:
            self._shut.set()
            if self._session is not None:
                self._session.close(FAREWELL)
            if self._store is not None:
                self._store.close()
            for port in self._ports.values():
                port.close()
            os.environ.update(self._secrets)  # this process may run another job
        return self._told

    # The node --------------------------------------------------------------------------------------------------------

    def _enrol(self) -> None:
        params, versions = self._params, Versions(**installed_versions())
        # First: a node that fails after it has joined ends the job for all.
        self._address = advertised_address(
            params.endpoint, "HOST", params.local_addr, single_node=params.max_nodes == 1
        )
        patience = self._read.timing.join_timeout
        at_first = StoreWait(params.endpoint, min(FIRST_CONNECTION_SECONDS, patience), say)
        made = at_first.connect(partial(self._connect, params))
        self._store = protect(made, f"rendezvous backend {params.backend!r}", params.token, params.run_id)
        for warning in self._store.warnings:
            say(Event("store_warning", f"{warning.message} {warning.hint}", Level.WARNING))
        for name in os.environ.keys() - inheritable(os.environ).keys():  # which has been read by now
            self._secrets[name] = os.environ.pop(name)  # torchrun's workers get all that there is
        info = NodeInfo(
            node_id=self._runtime.new_id(),
            host=host_name(),
            host_id=self._runtime.new_id(),  # without a slot there, and so as a host of its own: see the top
            slot=0,
            local_world_size=1,  # torchrun's agents tell each other
            role="torchrun",
            versions=versions,
        )
        agreement = Agreement(
            min_nodes=params.min_nodes, max_nodes=params.max_nodes, max_restarts=0, failure_policies=AGREED
        )
        settings = Settings(
            agreement=agreement,
            timing=self._read.timing,
            versions=versions,
            host=info.host,
            release=__version__,
            command=command_of(sys.argv, info.host),
        )
        offer = self._offer()
        unnamed = params.run_id == DEFAULT_ID
        applicant = Applicant(info=info, settings=settings, scheduler_uid=self._uid, unnamed=unnamed, offer=offer)

        wait = StoreWait(params.endpoint, patience, say)
        found = wait.call(self._store, lambda store: join(store, applicant, self._runtime))
        if isinstance(found, Closed):
            raise RendezvousClosedError(f"The job {params.run_id!r} is over: {found.why}")
        for difference in describe_differences(found.ledger.settings, settings):
            say(Event("settings_differ", difference, Level.WARNING))
        self._state, self._row = NodeState(row=NodeRow(info=info, offer=offer), ledger=found.ledger), found.row
        calls = SessionCalls(post=self._post, publish=say, judge=_restart, crashed=self._crashed)
        try:
            self._session = Session(self._store, found, self._runtime, calls)
        except BaseException:
            with suppress(Exception):
                self._store.remove(info.node_id)  # else it is given a round, for which the others wait in vain
            raise
        self._tell()
        self._session.start()
        threading.Thread(target=self._tick, args=(self._session,), name="elastic-tick", daemon=True).start()

    def _workers_are_gone(self, why: str) -> None:
        """No worker runs here: the agent was told to stop them, or something failed, as ``why`` says."""
        with self._changed:
            self._check()
            if self._state.work is Work.RUNNING:
                info = self._state.row.info
                incident = Incident(
                    kind=IncidentKind.WORKER_FAILED,
                    round=self._state.row.round,
                    node_id=info.node_id,
                    host=str(info),
                    message=why,
                )
                self._step(WorkerFailed(incident))
            if self._state.work is Work.STOPPING:
                self._step(WorkersGone())

    def _finished(self) -> None:
        """Note that the agent enters its exit barrier, and will not start workers again."""
        with self._changed:
            self._last = self._state.row.round
            self._post(WorkersDone())

    def _post(self, event: NodeEvent) -> None:
        with self._changed:
            self._step(event)
            ledger = self._state.ledger
            over = ledger.halt is not None or (ledger.round is not None and ledger.round.number != self._last)
            if self._last and over and ledger.closed is None:
                self._step(Leaving("its workers have finished", ExitCode.SUCCESS))  # the others go on without it
            self._changed.notify_all()

    def _step(self, event: NodeEvent) -> None:
        assert self._session is not None
        self._state, effects = step(self._state, event)
        self._tell()
        for effect in effects:
            self._do(effect)

    def _tell(self) -> None:
        assert self._session is not None
        if (row := row_of(self._state)) != self._row:
            self._row = row
            self._session.publish_row(row)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Start(current):
                self._begun, self._fresh = (current, self._runtime.now()), True
            case MakeOffer():
                self._step(Offered(self._offer()))
            case Stop():
                if self._fresh or self._last:  # none were started, or all have exited
                    self._fresh = False
                    self._step(WorkersGone())
                # Else num_nodes_waiting() says it.
            case Exit():
                self._exit = effect

    def _crashed(self, error: BaseException) -> None:
        with self._changed:
            self._crash = error
            self._changed.notify_all()

    def _check(self) -> None:
        if isinstance(self._crash, ElasticError):
            raise self._crash
        if self._crash is not None:
            raise RuntimeError("a thread of the session failed") from self._crash

    def _ended(self) -> RendezvousError:
        closed = self._state.ledger.closed
        if closed is None:
            return RendezvousConnectionError(f"No further round comes: {self._exit.why if self._exit else 'left'}.")
        kind = RendezvousTimeoutError if closed.exit_code == ExitCode.TOO_FEW_NODES else RendezvousClosedError
        return kind(f"The job {self._params.run_id!r} is closed: {closed.why}")

    def _tick(self, session: Session) -> None:
        while not self._shut.wait(TICK):
            session.tick()
            session.check_answers(self._params.endpoint)

    # The round's store -----------------------------------------------------------------------------------------------

    def _offer(self) -> Offer:
        port = HeldPort.take_at(self._address)
        port.listen()  # the others may be faster than this node's agent
        offer = Offer(self._address, port.port, self._runtime.new_id(), hosted=True)
        self._ports[offer.id] = port
        kept = {*list(self._ports)[-2:], None if self._begun is None else self._begun[0].offer.id}
        for old in [old for old in self._ports if old not in kept]:
            self._ports.pop(old).close()  # it went into a round which never began here, or was renewed
        return offer

    def _is_next(self, current: Round) -> bool:
        return self._fresh and self._begun is not None and self._begun[0] is current

    def _over(self, current: Round) -> bool:
        """Return True if the wait for this round is over; waits a moment for that."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._is_next(current) or bool(self._exit or self._crash), stores.LOOK
            )

    def _info(self, current: Round) -> RendezvousInfo | None:
        """Return the round as torchrun's agent takes it, once all agents are there; None if it was over before."""
        rank = current.group_ranks[self._state.row.info.node_id]
        offer = current.offer
        with self._changed:
            port = self._ports.pop(offer.id, None)
        over = partial(self._over, current)
        store = stores.open_store(offer, port, over)
        if store is None:
            return None
        self._stores = [*self._stores[-1:], store]
        if not stores.gather(store, len(current.members), over):
            return None
        return RendezvousInfo(
            stores.AgentStore(store, self._finished),
            rank,
            len(current.members),
            BootstrapStoreInfo(offer.address, offer.port),
        )


def _restart(incident: Incident, history: History) -> Verdict:
    return Verdict(Action.RESTART, "torchrun's agents count restarts")


def say(event: Event) -> None:
    """Print what needs a person's attention, and when it is over."""
    if event.level >= Level.WARNING or event.name == "store_back":
        print(f"[elastic] {event.message}", file=sys.stderr, flush=True)


def close_run(store: RendezvousBackend, author: str, why: str, runtime: Runtime) -> None:
    """Close the run as failed, unless it is closed, for a node that may have no session any more.

    The node becomes the leader, then appends CLOSED (rule S1).

    Raises:
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something that cannot be.
    """
    while (ledger := load(store, runtime.now(), runtime.codec)) is not None and ledger.closed is None:
        bodies: tuple[Body, ...] = (Leader(why=why), Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED))
        for body in bodies:
            now = runtime.now()
            entry = compose(ledger, body, entry_id=runtime.new_id(), author=author, now=now)
            if not store.append(ledger.head.link, entry.link, runtime.codec.encode_entry(entry)):
                break  # another node was faster: look again
            ledger = advance(ledger, entry, now)


def command_of(argv: Sequence[str], host: str) -> Command:
    """Return what the nodes of one job are compared by, from torchrun's own command line: handlers do not get it.

    It is empty where this process is no torchrun.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if os.path.basename(argv[0] if argv else "") != "torchrun" and (main is None or main.name != LAUNCHER):
        return Command()
    try:
        given = import_module(LAUNCHER).get_args_parser().parse_args(list(argv[1:]))
        program = Program(_kind(given), given.training_script, tuple(given.training_script_args))
    except (ImportError, AttributeError, SystemExit):  # another torch, which has other flags
        return Command()
    return Command(name=name_of(program), arguments=arguments_digest(program, host), role=given.role)


def _kind(given: object) -> ProgramKind:
    if getattr(given, "no_python", False):
        return ProgramKind.EXECUTABLE
    if getattr(given, "module", False):
        return ProgramKind.MODULE
    return ProgramKind.RUN_PATH if getattr(given, "run_path", False) else ProgramKind.SCRIPT
