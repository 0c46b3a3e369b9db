"""The fork server: imports once what every worker imports, and forks workers from there on request.

It has one thread and touches no device. A worker is forked twice, so that the warden, a subreaper, becomes its parent:
it reaps it, and the parent-death signal means the right one. Each request brings a pipe to the warden, on which the
first fork says the number of the second, and the second, just before it goes on to the program, that all is well.

When it has nothing to do, it is asked for a fork that imports more, and takes its place then. Meanwhile it still
serves, and it stays if from that nobody can be forked.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from elastic_core.forkserver import child, huge_pages, init_probe, libraries
from elastic_core.forkserver.checks import Wanted, describe_threads, describe_unfitness, objection
from elastic_core.forkserver.exit_probe import Farewell
from elastic_core.forkserver.facts import Observer
from elastic_core.forkserver.import_record import Record
from elastic_core.forkserver.learned_imports import NOTHING_LEARNED, Learned, Learning
from elastic_core.forkserver.libraries import Libraries
from elastic_core.forkserver.library_modules import library_roots
from elastic_core.forkserver.source_files import Sources
from elastic_core.host.process_title import Title
from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.fork_server import NOTHING_NEW
from elastic_core.warden.linux import die_once_adopted, ignore_requests_to_end
from elastic_core.worker.channel import FAILED, INITIALIZED, OVER, report

_NOT_THEIRS = (__file__, importlib.__file__, "<frozen importlib")
"""Files whose frames come before those of a module that is being imported."""
MOST_REFUSED = 20  # modules that workers import and the fork server must not, of which it tells
REST = 0.2  # seconds without a request after which the fork server does something for itself
COERCED = "LC_CTYPE"  # a variable that the interpreter itself may set when it starts (PEP 538)


def run(control: int, usual: Iterable[str]) -> None:
    """Be the fork server until the warden hangs up; returns in workers only, and in each once."""
    os.set_inheritable(control, False)
    channel = Channel(socket.socket(fileno=control))
    [(order, _), *requests] = _wait(channel)
    environment = order["env"]
    own = {COERCED: os.environ[COERCED]} if COERCED in os.environ and COERCED not in environment else {}
    title = Title()
    title.show_fork_server()
    child.replace_environment({**environment, **own, **libraries.WHILE_IMPORTING})
    farewell = Farewell()
    modules, seconds = order["modules"], _preload(order["modules"], channel)
    if not order["whole"]:
        [(rest, _), *requests] = requests or _wait(channel)
        modules, seconds = rest["modules"], seconds + _preload(rest["modules"], channel)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _ForkServer(channel, environment, own, title, farewell, usual, Learning(), Sources(library_roots())).stay(
        modules, seconds, requests
    )


class _ForkServer:
    """What is the same for all forks."""

    def __init__(
        self,
        channel: Channel,
        environment: Mapping[str, str],
        own: Mapping[str, str],
        title: Title,
        farewell: Farewell,
        usual: Iterable[str],
        learning: Learning,
        sources: Sources,
    ) -> None:
        self._channel, self._learning, self._sources = channel, learning, sources
        self._environment, self._own, self._usual = environment, own, usual
        self._title, self._farewell = title, farewell
        self._libraries = Libraries()
        self._observer = Observer(environment, usual)

    def stay(
        self,
        modules: list[str],
        seconds: float,
        requests: list[tuple[Message, list[int]]],
        learned: Learned = NOTHING_LEARNED,
    ) -> None:
        """Say that these modules are imported, and serve. Returns in workers only."""
        gc.freeze()  # else the next collection in a worker would write to every object, and so copy every page
        refused = dict(itertools.islice(learned.refused.items(), MOST_REFUSED))
        more = {"learned": len(learned.imported), "refused": refused}
        self._channel.send({"event": "ready", "seconds": seconds, "modules": modules, **more})
        requests += self._channel.receive()
        collapsed, poll = False, _poll(self._channel)
        while not self._serve(requests):
            while not (collapsed or poll.poll(REST * 1000)):  # those that were just forked have much to do
                self._sources.record()
                collapsed = huge_pages.collapse(lambda: bool(poll.poll(0)))
            requests = _wait(self._channel)

    def _serve(self, requests: list[tuple[Message, list[int]]]) -> bool:
        """Fork what was asked for; True in a worker that is ready for its program, False in the fork server."""
        firsts = []
        changed = self._sources.find_changed() if requests else None
        while requests:
            request, descriptors = requests.pop(0)
            given = dict(zip(request["descriptors"], descriptors, strict=False))
            if len(given) < len(request["descriptors"]):
                reason: str | None = "no descriptors are left for its streams in the preloaded process"
            else:
                reason = self._objection(request, changed)
            if reason is not None:
                if "pipe" in given:
                    _answer(given["pipe"], "no", reason)
                close_all(descriptors)
                continue
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    stream.flush()
            try:
                record = self._new_record(request)
                first = child.fork()
            except OSError as exc:
                _answer(given["pipe"], "no", f"the preloaded process cannot fork: {exc}")
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
            os._exit(0)  # the warden makes another one, which imports what is there now
        return False

    def _objection(self, request: Message, changed: str | None) -> str | None:
        if request["kind"] == "FORK_SERVER":
            if changed is not None or (
                request["learns"]
                and not self._learning.candidates()
                and all(name in sys.modules for name in request["modules"])
            ):
                return NOTHING_NEW
            return describe_unfitness(self._observer.facts())
        if request["kind"] == "SERVICE":
            return describe_threads(self._observer.facts())
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

    def _new_record(self, request: Message) -> Record | None:
        """Where a worker is to record what it imports; None for what is no worker."""
        wanted = request["kind"] == "WORKER"
        return self._learning.new_record(request["env"], self._environment) if wanted else None

    def _fork_again(self, request: Message, given: dict[str, int], others: list[int], record: Record | None) -> None:
        """In the first fork: make the second one, and end. Returns in that, as soon as it may go on to the program."""
        pipe = given["pipe"]
        parent = os.getpid()
        try:
            if (pid := child.fork()) != 0:
                os.write(pipe, b"pid %d\n" % pid)
                os._exit(0)
            # The second. Whatever happens in here is said on the pipe, and gets no further.
            self._channel.close()
            close_all(others)
            reason = self._prepare(request, given)
            if not die_once_adopted(parent, request["warden"]):
                os._exit(127)  # the warden is dead
            os.setsid()
            if reason is not None:
                _answer(pipe, "no", reason)
                os._exit(127)
        except BaseException as exc:
            _answer(pipe, "no", f"{type(exc).__name__}: {exc}")
            os._exit(127)
        if request["kind"] == "SERVICE":
            _serve(request, given)
        if request["kind"] == "FORK_SERVER":
            _well(pipe)
            self._succeed(request["modules"], given["control"], learns=request["learns"])
            return
        for name, fd in given.items():
            if name != "pipe":
                os.close(fd)
        unlearned = self._learning.count_unlearned()
        if record is not None:
            record.begin()
        _go(pipe, unlearned)

    def _succeed(self, modules: list[str], control: int, *, learns: bool) -> None:
        """In the second fork: be the next fork server, that has imported more. Returns in workers only.

        Modules that were named are imported first, and then, if it learns, what workers have imported.
        """
        channel, start = Channel(socket.socket(fileno=control)), time.monotonic()
        _preload(modules, channel)
        learned = self._learning.learn() if learns else NOTHING_LEARNED
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None:  # torch._dynamo has asked it where temporary files go; a script may say so later
            tempfile.tempdir = None
        successor = _ForkServer(
            channel,
            self._environment,
            self._own,
            self._title,
            self._farewell,
            self._usual,
            self._learning,
            self._sources,
        )
        reason = (
            NOTHING_NEW if self._sources.find_changed() is not None else describe_unfitness(successor._observer.facts())
        )
        self._sources.record()
        if reason is not None:
            channel.send({"event": "failed", "reason": reason})
            os._exit(1)
        successor.stay(modules, round(time.monotonic() - start, 6), [], learned)

    def _prepare(self, request: Message, given: dict[str, int]) -> str | None:
        """Everything that needs no parent yet; an objection that comes up only now."""
        if request["kind"] == "FORK_SERVER":
            return None
        if request["kind"] == "SERVICE":
            self._title.show_service(request["entry"])
            return None
        self._title.show(request["argv"])
        child.become(request, given, {**self._learning.set_by_imports, **request["env"], **self._own})
        self._title.show_environment({name: os.environ[name] for name in os.environ if name not in self._own})
        self._libraries.renew(os.environ)
        if "control" in given:
            init_probe.watch(lambda: report(INITIALIZED))
            self._farewell.watch(lambda failed: report(FAILED if failed else OVER))
        return libraries.objection()


def _wait(channel: Channel) -> list[tuple[Message, list[int]]]:
    """Return the next requests. Without the warden there is nothing left to do."""
    poll = _poll(channel)
    while True:
        poll.poll()
        if requests := channel.receive():
            return requests
        if channel.closed:
            os._exit(0)


def _poll(channel: Channel) -> select.poll:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return poll


def _preload(modules: list[str], channel: Channel) -> float:
    """Import them; the seconds that it took. What one raises is told, and the end.

    Garbage is not looked for meanwhile: there is next to none, and looking takes a tenth of the time.
    """
    start, thresholds = time.monotonic(), gc.get_threshold()
    gc.set_threshold(0)
    try:
        with libraries.without_empty_cache():
            for name in modules:
                importlib.import_module(name)
    except BaseException as exc:  # whatever it is, it must not lead to the user's program
        trace = exc.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
            trace = trace.tb_next
        reason = "".join(traceback.format_exception(type(exc), exc, trace))
        channel.send({"event": "failed", "reason": reason.rstrip("\n")})
        os._exit(1)
    if gc.get_threshold()[0] == 0:  # none of them has chosen its own
        gc.set_threshold(*thresholds)
    return round(time.monotonic() - start, 6)


def _answer(pipe: int, word: str, text: str = "") -> None:
    os.write(pipe, f"{word} {text}".rstrip().encode(errors="replace"))


def _well(pipe: int, unlearned: int = 0) -> None:
    """Say that all is well, and how many modules a worker is expected to import by itself (``Learning.unlearned``)."""
    os.write(pipe, b"ok %d %d\n" % (os.getpid(), unlearned))
    os.close(pipe)


def _go(pipe: int, unlearned: int = 0) -> None:
    _well(pipe, unlearned)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _serve(request: Message, given: dict[str, int]) -> NoReturn:
    """In a service: call its function, and end."""
    pipe = given.pop("pipe")
    code = 1
    try:
        try:
            module, _, name = request["entry"].partition(":")
            function = getattr(importlib.import_module(module), name)
        except BaseException as exc:
            _answer(pipe, "no", f"{type(exc).__name__}: {exc}")
            os._exit(1)
        ignore_requests_to_end()
        _go(pipe)
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
