"""The fork server: imports once the modules that every worker imports, and forks workers on request.

It has one thread and touches no device. A worker is forked twice, so that the warden, a subreaper, becomes its parent.
Each request brings a pipe to the warden: the first fork writes the number of the second to it, and the second, just
before it goes on to the program, ``ok``. While the fork server is idle, the warden asks it for a fork that imports more
and then replaces it, if workers can be forked from that.
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
from collections.abc import Mapping, Sequence, Set
from typing import Any, NoReturn, TypeAlias

from elastic_core.warden import (
    NOTHING_NEW,
    Channel,
    Message,
    close_all,
    die_once_adopted,
    execute,
    functions_at_end,
    ignore_requests_to_end,
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
Requests: TypeAlias = "list[tuple[Message, list[int]]]"  # each with its descriptors
COERCED = "LC_CTYPE"  # a variable that the interpreter itself may set when it starts (PEP 538)


def run(control: int, usual: Set[str]) -> None:
    """Be the fork server until the warden closes the channel; returns in workers only, and in each once."""
    os.set_inheritable(control, False)
    channel = Channel(socket.socket(fileno=control))
    [(order, _), *requests] = _wait(channel)
    server = _ForkServer(order["env"], usual)
    modules, seconds = order["modules"], _preload(order["modules"], channel)
    told = f"the fork server has imported {', '.join(modules)} in {seconds:.2f} s: workers start warm"
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    server.examine(channel)
    server.stay(told, {"took_s": seconds}, requests)


class _ForkServer:
    """The state that all forks share; it goes on in a successor. It is made before any module is imported."""

    def __init__(self, environment: Mapping[str, str], usual: Set[str]) -> None:
        is_coerced = COERCED in os.environ and COERCED not in environment
        self._own = {COERCED: os.environ[COERCED]} if is_coerced else {}
        self._environment, self._usual = environment, usual
        self._title = ForkTitle()
        self._title.show_server()
        child.replace_environment({**environment, **self._own, **libraries.WHILE_IMPORTING})
        self._at_end = functions_at_end()
        self._learning, self._sources = Learning(), Sources(library_roots())

    def examine(self, channel: Channel) -> None:
        """Look at the libraries of this process once its modules are imported; ``channel`` leads to the warden."""
        self._channel, self._libraries = channel, Libraries()
        self._observer = Observer(self._environment, self._usual)

    def stay(self, told: str, fields: Mapping[str, Any], requests: Requests) -> None:
        """Report what is imported, and serve. Returns in workers only."""
        gc.freeze()  # else the next collection in a worker would write to every object, and so copy every page
        self._channel.send({"event": "ready", "text": told, "fields": fields})
        requests += self._channel.receive()
        collapsed, poll = False, _poll(self._channel)
        while not self._serve(requests):
            while not (collapsed or poll.poll(IDLE_SECONDS * 1000)):  # workers just forked should have the CPUs
                self._sources.record()
                collapsed = collapse(lambda: bool(poll.poll(0)))
            requests = _wait(self._channel)

    def _serve(self, requests: Requests) -> bool:
        """Make the requested forks; True in a worker that is ready for its program, False in the fork server."""
        firsts = []
        changed = self._sources.find_changed() if requests else None
        while requests:
            request, descriptors = requests.pop(0)
            given = dict(zip(request["descriptors"], descriptors, strict=False))
            if (reason := self._objection(request, given, changed)) is not None:
                if "pipe" in given:
                    _refuse(given["pipe"], reason)
                close_all(descriptors)
                continue
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    stream.flush()
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
        if request["kind"] == "STARTER":
            if changed is not None or (
                request["learns"]
                and not self._learning.candidates()
                and all(name in sys.modules for name in request["modules"])
            ):
                return NOTHING_NEW
            return describe_unfitness(self._observer.facts())
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
        if request["kind"] == "STARTER":
            _confirm(pipe)
            self._succeed(request["modules"], given["control"], learns=request["learns"])
            return
        for name, fd in given.items():
            if name != "pipe":
                os.close(fd)
        unlearned = self._learning.count_unlearned()
        if record is not None:
            record.begin()
        _confirm(pipe, unlearned)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _succeed(self, modules: list[str], control: int, *, learns: bool) -> None:
        """In the second fork: be the next fork server, that has imported more. Returns in workers only.

        It imports the named modules first, and then, if it learns, those that workers have imported.
        """
        channel, start = Channel(socket.socket(fileno=control)), time.monotonic()
        _preload(modules, channel)
        learned = self._learning.learn() if learns else Learned()
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None:  # torch._dynamo has made it settle its directory; a script may still choose another
            tempfile.tempdir = None
        self.examine(channel)
        changed = self._sources.find_changed() is not None
        reason = NOTHING_NEW if changed else describe_unfitness(self._observer.facts())
        self._sources.record()
        if reason is not None:
            channel.send({"event": "failed", "reason": reason})
            os._exit(1)
        seconds = round(time.monotonic() - start, 6)
        fields = {
            "took_s": seconds,
            "learned": len(learned.imported),
            "refused": ", ".join(itertools.islice(learned.refused, MOST_REFUSED_NAMES)),
        }
        self.stay(describe_growth(modules, seconds, learned), fields, [])

    def _prepare(self, request: Message, given: dict[str, int]) -> str | None:
        """Turn a fork into the requested process, before the warden adopts it; return why it must start fresh."""
        if request["kind"] == "STARTER":
            return None
        if request["kind"] == "SERVICE":
            self._title.show_service(request["entry"])
            return None
        self._title.show_worker(request["argv"])
        child.become(request, given, {**self._learning.set_by_imports, **request["env"], **self._own})
        self._title.show_environment({name: os.environ[name] for name in os.environ if name not in self._own})
        self._libraries.renew(os.environ)
        execute(request["startup"], self._at_end)
        if "control" in given:
            libraries.watch_process_group(lambda: report(INITIALIZED))
        return libraries.objection()


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
    """Return the next requests. Ends the process once the warden is gone."""
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
