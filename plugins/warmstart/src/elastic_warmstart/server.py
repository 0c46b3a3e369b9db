"""The fork server: imports once the modules that every worker imports, and forks workers on request.

It has one thread and touches no device. A worker is forked twice, so that the warden, a subreaper, becomes its parent.
Each request brings a pipe to the warden: the first fork writes the number of the second to it, and the second, just
before it goes on to the program, ``ok``.

Once the fork server is idle, it forks a *successor*, which imports more, dies with it, and replaces it if workers can
be forked from that. Both have the socket to the warden, from which only one of them reads. Another socket, the link, is
between the two: the successor reports on it that it is ready, or why it will not be. The fork server gives way between
two messages of the warden: it sends the warden that report with the successor's number, sends the successor how far it
has come, and ends. The successor reads the next message.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn, TypeAlias

from elastic_core.exit_codes import describe_exit
from elastic_core.warden import (
    Channel,
    Message,
    close_all,
    die_once_adopted,
    die_with_parent,
    ignore_requests_to_end,
    signal_group,
)
from elastic_core.worker import INITIALIZED, report
from elastic_warmstart import child, libraries
from elastic_warmstart.checks import Observer, Wanted, beside_main, describe_unfitness, objection, tasks
from elastic_warmstart.learned_imports import Learned, Learning, Record
from elastic_warmstart.libraries import Libraries
from elastic_warmstart.library_modules import Sources, library_roots
from elastic_warmstart.process import ForkTitle, collapse

_IMPORT_FILES = (__file__, importlib.__file__, "<frozen importlib")
"""Files whose frames come before those of a module that is being imported."""
MOST_REFUSED = 5  # of the modules that it must not import, with the reason for each
MOST_REFUSED_NAMES = 20
IDLE_SECONDS = 0.2  # without a request, after which the fork server records sources and collapses its memory
DELAYS_SECONDS = (2.0, 10.0, 30.0, 120.0, 600.0)
"""After the newest fork of a worker, when a successor is due: the workers import at first, and should have the CPUs.
All but the first also import what workers have imported by then."""
SUCCESSOR_MAX_SECONDS = 600.0  # for the imports of a successor
REAP_MAX_LOOKS, REAP_LOOK_SECONDS = 100, 0.01  # for one that was killed; meanwhile no worker is forked
NOTHING_NEW = "nothing is left to be imported"  # why there is none if it would be the same
Requests: TypeAlias = "list[tuple[Message, list[int]]]"  # each with its descriptors
Execute: TypeAlias = "Callable[[Iterable[str]], None]"  # executes a worker's startup files
COERCED = "LC_CTYPE"  # a variable that the interpreter itself may set when it starts (PEP 538)


def run(control: int, usual: Set[str], execute: Execute) -> None:
    """Be the fork server until the warden closes the channel; returns in workers only, and in each once."""
    os.set_inheritable(control, False)
    channel = Channel(socket.socket(fileno=control))
    [(order, _), *requests] = _wait(channel)
    server = _ForkServer(channel, order, usual, execute)
    modules, seconds = order["modules"], _preload(order["modules"], channel)
    told = f"the fork server has imported {', '.join(modules)} in {seconds:.2f} s: workers start warm"
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    server.examine()
    channel.send({"event": "ready", "text": told, "fields": {"took_s": seconds}, "complete": not order["later"]})
    server.stay(requests)


class _ForkServer:
    """The state that all forks share; it goes on in a successor. It is made before any module is imported."""

    def __init__(self, channel: Channel, order: Message, usual: Set[str], execute: Execute) -> None:
        environment = order["env"]
        self._channel, self._warden = channel, order["warden"]
        self._later, self._growth = order["later"], Growth(bool(order["later"]))
        is_coerced = COERCED in os.environ and COERCED not in environment
        self._own = {COERCED: os.environ[COERCED]} if is_coerced else {}
        self._environment, self._usual, self._execute = environment, usual, execute
        self._title = ForkTitle()
        self._title.show_server()
        child.replace_environment({**environment, **self._own, **libraries.WHILE_IMPORTING})
        self._learning, self._sources = Learning(), Sources(library_roots())

    def examine(self) -> None:
        """Look at the libraries of this process once its modules are imported."""
        self._libraries = Libraries()
        self._observer = Observer(self._environment, self._usual)

    def stay(self, requests: Requests) -> None:
        """Serve, and have successors. Returns in workers only."""
        gc.freeze()  # else the next collection in a worker would write to every object, and so copy every page
        for stream in (sys.__stdout__, sys.__stderr__):  # else forks would write what imports have left there
            if stream is not None:
                stream.flush()
        collapsed = False
        while not (self._serve(requests) or self._grow(time.monotonic())):
            # Workers just forked should have the CPUs.
            if not (self._poll(math.inf if collapsed else IDLE_SECONDS) or collapsed):
                self._sources.record()
                collapsed = collapse(lambda: self._poll(0.0))
            requests = self._channel.receive()
            if self._channel.closed and not requests:
                os._exit(0)

    def _poll(self, seconds: float) -> bool:
        """Wait for a message, but not when :meth:`_grow` has something to do; True if there is one."""
        self._channel.flush()
        sockets = [self._channel]
        if self._channel.is_between_messages:
            seconds = min(seconds, self._growth.deadline() - time.monotonic())
            sockets += filter(None, [self._growth.link])
        return bool(select.select(sockets, [], [], min(max(0.0, seconds), 1e9))[0])  # infinity is no timeout

    def _grow(self, now: float) -> bool:
        """Fork a successor that is due, or give way to one that is ready; True in a worker that it has forked."""
        growth, reason = self._growth, None
        if not self._channel.is_between_messages:
            return False
        if growth.link is not None:
            answer = growth.read_answer(growth.link, now)
            if answer is not None and answer["event"] == "ready":
                self._channel.send(answer)
                growth.link.send({"step": growth.step, "forked_at": growth.forked_at})
                os._exit(0)
            reason = None if answer is None else answer["reason"]
        elif now >= growth.deadline():
            if self._sources.find_changed() is not None:
                os._exit(0)  # as in _serve
            growth.step += 1
            known = not self._learning.candidates() and all(name in sys.modules for name in self._later)
            reason = NOTHING_NEW if known else describe_unfitness(self._observer.facts()) or growth.fork(now)
            if reason is None and growth.pid == 0:
                self._succeed()
                return True
        if reason is not None and (reason != NOTHING_NEW or growth.step == 1):  # a node may wait for the first one
            told = f"what workers import later is not preloaded: {reason}"
            self._channel.send({"event": "ready", "text": told, "fields": {}})
        if reason not in (None, NOTHING_NEW):
            growth.steps = 0  # the next one would fail too
        return False

    def _serve(self, requests: Requests) -> bool:
        """Make the requested forks; True in a worker that is ready for its program, False in the fork server."""
        firsts = []
        changed = self._sources.find_changed() if requests else None
        while requests:
            request, descriptors = requests.pop(0)
            if request["kind"] == "COMPLETE":
                self._growth.hasten(time.monotonic())
                continue
            if request["kind"] == "WORKER":
                self._growth.note_worker(time.monotonic())
            given = dict(zip(request["descriptors"], descriptors, strict=False))
            if (reason := self._objection(request, given, changed)) is not None:
                if "pipe" in given:
                    _refuse(given["pipe"], reason)
                close_all(descriptors)
                continue
            record = None
            try:
                if request["kind"] == "WORKER":
                    record = self._learning.new_record(request["env"], self._environment)
                first = child.fork()
            except OSError as exc:
                _refuse(given["pipe"], f"the preloaded process cannot fork: {exc}")
                close_all(descriptors)
                continue
            if first == 0:
                self._fork_again(request, given, [fd for _, others in requests for fd in others], record)
                return True
            firsts.append(first)
            close_all(descriptors)
        for first in firsts:
            os.waitpid(first, 0)
        if changed is not None:
            os._exit(0)  # the warden starts another one, which imports the present files
        return False

    def _objection(self, request: Message, given: Mapping[str, int], changed: str | None) -> str | None:
        if len(given) < len(request["descriptors"]):
            return "no descriptors are left for its streams in the preloaded process"
        if request["kind"] == "SERVICE":
            return beside_main(tasks())
        if changed is not None:
            return f"{changed} has changed since it was imported"
        cpus, directory = request["cpus"], request["cwd"]
        wanted = Wanted(
            argv=tuple(request["argv"]),
            environment={**request["env"], **self._own},
            directory="" if directory is None else os.path.realpath(directory),
            cpus=None if cpus is None else frozenset(cpus),
        )
        return objection(self._observer.facts(), wanted)

    def _fork_again(self, request: Message, given: dict[str, int], others: list[int], record: Record | None) -> None:
        """In the first fork: make the second one, and end. In that: return as soon as the program may begin."""
        pipe = given["pipe"]
        parent = os.getpid()
        try:
            if (pid := child.fork()) != 0:
                os.write(pipe, b"pid %d\n" % pid)
                os._exit(0)
            # The second. Any exception is reported on the pipe, and ends here.
            self._channel.close()
            if self._growth.link is not None:
                self._growth.link.close()
            close_all(others)
            reason = self._prepare(request, given)
            if not die_once_adopted(parent, request["warden"]):
                os._exit(127)  # the warden is dead
            os.setsid()
            if reason is not None:
                _refuse(pipe, reason)
                os._exit(127)
        except BaseException as exc:
            _refuse(pipe, f"{type(exc).__name__}: {exc}")
            os._exit(127)
        if request["kind"] == "SERVICE":
            _run_service(request, given)
        for name, fd in given.items():
            if name != "pipe":
                os.close(fd)
        unlearned = self._learning.count_unlearned()
        if record is not None:
            record.begin()
        _confirm(pipe, unlearned)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _succeed(self) -> None:
        """In a fork: be the next fork server, that has imported more. Returns in workers only.

        It imports the later modules first, and then, if it is not the first, those that workers have imported.
        """
        start, link = time.monotonic(), self._growth.link
        assert link is not None
        _preload(self._later, link)
        learned = self._learning.learn() if self._growth.step > 1 else Learned()
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None:  # torch._dynamo has made it settle its directory; a script may still choose another
            tempfile.tempdir = None
        self.examine()
        changed = self._sources.find_changed() is not None
        reason = NOTHING_NEW if changed else describe_unfitness(self._observer.facts())
        self._sources.record()
        if reason is not None:
            link.send({"event": "failed", "reason": reason})
            os._exit(1)
        seconds = round(time.monotonic() - start, 6)
        fields = {
            "took_s": seconds,
            "learned": len(learned.imported),
            "refused": ", ".join(itertools.islice(learned.refused, MOST_REFUSED_NAMES)),
        }
        parent, told = os.getppid(), describe_growth(self._later, seconds, learned)
        die_with_parent(signal.SIGUSR2)  # which is blocked: from now on the link tells of its end
        link.send({"event": "ready", "pid": os.getpid(), "text": told, "fields": fields})
        [(state, _)] = _wait(link)
        if not die_once_adopted(parent, self._warden):
            os._exit(1)
        link.close()
        self._growth.link, self._growth.step, self._growth.forked_at = None, state["step"], state["forked_at"]
        self.stay([])

    def _prepare(self, request: Message, given: dict[str, int]) -> str | None:
        """Turn a fork into the requested process, before the warden adopts it; return why it must start fresh."""
        if request["kind"] == "SERVICE":
            self._title.show_service(request["entry"])
            return None
        self._title.show_worker(request["argv"])
        child.become(request, given, {**self._learning.set_by_imports, **request["env"], **self._own})
        self._title.show_environment({name: os.environ[name] for name in os.environ if name not in self._own})
        self._libraries.renew(os.environ)
        self._execute(request["startup"])
        if "control" in given:
            libraries.watch_process_group(lambda: report(INITIALIZED))
        return libraries.objection()


class Growth:
    """The successors of a fork server, if it ``grows``. Times are of the monotonic clock.

    There is none before the first worker, unless it is hastened: a successor learns only from workers forked before it.
    """

    def __init__(self, grows: bool) -> None:
        self.steps = len(DELAYS_SECONDS) if grows else 0
        self.step, self.forked_at = 0, math.inf  # the next step, and the newest fork of a worker
        self.link: Channel | None = None  # between a fork server and the successor that imports
        self.pid, self._began = 0, 0.0  # of the successor, which itself has 0 as the number

    def deadline(self) -> float:
        """Return when a successor is due, or when the one that imports is late; infinity for never."""
        if self.link is not None:
            return self._began + SUCCESSOR_MAX_SECONDS
        return self.forked_at + DELAYS_SECONDS[self.step] if self.step < self.steps else math.inf

    def hasten(self, now: float) -> None:
        """Let the first successor be due now, since no worker is about to start."""
        if self.step == 0:
            self.forked_at = now - DELAYS_SECONDS[0]

    def note_worker(self, now: float) -> None:
        """Begin again with the second step, the first that learns from workers."""
        self.step, self.forked_at = min(self.step, 1), now

    def fork(self, now: float) -> str | None:
        """Fork a successor, which dies with this process; return why it could not be forked."""
        parent = os.getpid()
        try:
            ours, theirs = map(Channel, socket.socketpair())
            self.pid = child.fork()
        except OSError as exc:
            return f"the preloaded process cannot fork: {exc}"
        if self.pid == 0:
            os.setsid()
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            ours, theirs = theirs, ours
        theirs.close()
        self.link, self._began = ours, now
        return None

    def read_answer(self, link: Channel, now: float) -> Message | None:
        """Return the successor's answer for the warden, None while it imports. End one that has failed or is late."""
        answer = next((message for message, _ in link.receive()), None)
        if answer is None and now >= self.deadline():
            answer = {"event": "failed", "reason": f"its import did not end within {SUCCESSOR_MAX_SECONDS:.0f} s"}
        if answer is None and not link.closed:
            return None
        if answer is None or answer["event"] == "failed":
            signal_group(self.pid, signal.SIGKILL)
            how = _reap(self.pid)
            answer = answer or {"event": "failed", "reason": f"the process that imported it {how}"}
            link.close()
            self.link = None
        return answer


def _reap(pid: int) -> str:
    """Return how a killed process has ended. One that waits in the kernel, as for a disk, is left to itself."""
    for _ in range(REAP_MAX_LOOKS):
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            return describe_exit(os.waitstatus_to_exitcode(found[1]))
        time.sleep(REAP_LOOK_SECONDS)
    return "cannot be killed"


def describe_growth(modules: Sequence[str], seconds: float, learned: Learned) -> str:
    """Return in one sentence what a successor has imported, and why it has not imported other modules."""
    said = f"the fork server has imported {', '.join(modules)} besides, in {seconds:.2f} s"
    if learned.imported:
        said += f", and {len(learned.imported)} more module(s) that workers have imported"
    if shown := [f"{name} ({why})" for name, why in itertools.islice(learned.refused.items(), MOST_REFUSED)]:
        more = len(learned.refused) - len(shown)
        said += f"; workers import by themselves: {', '.join(shown)}" + (f" and {more} more" if more else "")
    return said


def _wait(channel: Channel) -> Requests:
    """Return the next messages. Ends the process once the other end is gone."""
    while not (messages := channel.receive()):
        if channel.closed:
            os._exit(0)
        select.select([channel], [], [])
    return messages


def _preload(modules: list[str], channel: Channel) -> float:
    """Import them; return the seconds that it took. An exception is reported, and ends the process.

    Garbage is not collected meanwhile: there is next to none, and a tenth of the time would go there.
    """
    start, thresholds = time.monotonic(), gc.get_threshold()
    gc.set_threshold(0)
    try:
        with libraries.without_empty_cache():
            for name in modules:
                importlib.import_module(name)
    except BaseException as exc:  # also SystemExit: nothing may lead to the user's program
        trace = exc.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_IMPORT_FILES):
            trace = trace.tb_next
        reason = "".join(traceback.format_exception(type(exc), exc, trace))
        channel.send({"event": "failed", "reason": reason.rstrip("\n")})
        os._exit(1)
    if gc.get_threshold()[0] == 0:  # no module has set another one
        gc.set_threshold(*thresholds)
    return round(time.monotonic() - start, 6)


def _refuse(pipe: int, reason: str) -> None:
    os.write(pipe, f"no {reason}".rstrip().encode(errors="replace"))


def _confirm(pipe: int, unlearned: int = 0) -> None:
    """Report the start, and how many modules a worker will probably import itself (``Learning.count_unlearned``)."""
    os.write(pipe, b"ok %d %d\n" % (os.getpid(), unlearned))
    os.close(pipe)


def _run_service(request: Message, given: dict[str, int]) -> NoReturn:
    """In a service: call its function, and end."""
    pipe = given.pop("pipe")
    code = 1
    try:
        try:
            module, _, name = request["entry"].partition(":")
            function = getattr(importlib.import_module(module), name)
        except BaseException as exc:
            _refuse(pipe, f"{type(exc).__name__}: {exc}")
            os._exit(1)
        ignore_requests_to_end()
        _confirm(pipe)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        function(**request["arguments"], **given)
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 0xFF)
