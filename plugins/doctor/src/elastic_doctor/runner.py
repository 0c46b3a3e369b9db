"""An examination in a process of its own, and its watcher: it cannot hang, and leaves nothing in the store.

The checks run in a fork of this process, on its main thread, as an agent's do. Before everything that has to be
answered it tells for how long that may keep it waiting; after that it is killed, and what it was at is what hangs.
Whatever it may have left in the store is then deleted by another fork. Ctrl-C, SIGTERM and SIGHUP end it the same way;
if this process itself is killed, the fork finds its connection closed, and cleans up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

from elastic_core.errors import ElasticError, in_one_line
from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous import RendezvousBackend
from elastic_doctor.examination import ANSWER, IMPORT, Report, Step, Subject, erase, examine
from elastic_doctor.findings import Finding, State, warning, wrong

GRACE = 1.0  # seconds that a process which is told to end gets to clean up after itself
TICK = 0.1  # seconds between two looks at one that says nothing
FOR_EVER = 600  # seconds after which a fork whose watching process is gone ends

Examine: TypeAlias = Callable[[Subject, Report], None]
_fork = multiprocessing.get_context("fork")


class Signalled(BaseException):
    """A signal told the process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def examine_in_process(subject: Subject, examining: Examine = examine) -> Generator[Finding, None, None]:
    """Yield the findings, each as soon as it is there. Closing the iterator ends all.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; nothing is left.
        Signalled: The same for SIGTERM and SIGHUP.
    """
    with _signals_raise():
        watched = _Watched(subject, examining)
        try:
            yield from watched.findings()
        except BaseException:
            watched.stop()
            if watched.at.leaves:
                _erase_traces(subject)
            raise
        watched.join()
        if watched.at.leaves:
            yield _erase_traces(subject)


class _Watched:
    def __init__(self, subject: Subject, body: Examine) -> None:
        self._line, theirs = _fork.Pipe(duplex=False)
        self._process = _fork.Process(target=_body, args=(subject, body, theirs, self._line), daemon=False)
        self._process.start()
        theirs.close()
        self.at = Step("doctor", "", ANSWER, leaves=False)  # the step that it was at when it last reported

    def findings(self) -> Iterator[Finding]:
        waited = _Waited(self._process.pid or 0)
        while True:
            if not self._line.poll(TICK):
                if waited.seconds() > self.at.limit:
                    self._process.kill()
                    yield self._hangs()
                    return
                continue
            try:
                message = self._line.recv()
            except EOFError:
                self._process.join()
                yield self._died(self._process.exitcode or 0)
                return
            if message is None:
                return
            if isinstance(message, Finding):
                yield message
            else:
                self.at, waited = message, _Waited(self._process.pid or 0)

    def stop(self) -> None:
        """End it; first it may clean up after itself."""
        self._process.terminate()
        deadline = time.monotonic() + GRACE
        with contextlib.suppress(EOFError, OSError):
            while self._line.poll(max(0.0, deadline - time.monotonic())):
                if isinstance(message := self._line.recv(), Step):
                    self.at = message
        self.join(0)

    def join(self, grace: float = GRACE) -> None:
        """Return when it is gone, which after so many seconds it is in any case."""
        self._process.join(grace)
        self._process.kill()
        self._process.join()

    def _hangs(self) -> Finding:
        what = f"{self.at.during}: " if self.at.during else ""
        seen = f"{what}nothing that the backend understands has come back within {self.at.limit:g} s"
        advice = (
            "If something else listens at the endpoint, name another port. Else the store hangs, or a firewall "
            "swallows what is sent."
        )
        return wrong(self.at.check, seen, advice)

    def _died(self, code: int) -> Finding:
        during = f", at {self.at.during}" if self.at.during else ""
        seen = f"the process that tried it is gone, with exit code {code}{during}"
        advice = "What it said, if anything, is above; a client library may have crashed. Please report it."
        return wrong(self.at.check, seen, advice, ExitCode.INTERNAL)


class _Waited:
    """For how long a process has only waited. One that works, or would if the machine let it, does not hang.

    A look that comes late counts as if it had come in time: what kept this process from looking has most likely kept
    the other from answering.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._seconds, self._looked_at, self._worked = 0.0, time.monotonic(), self._work()

    def seconds(self) -> float:
        """So long by now; asked once in a while."""
        now, worked = time.monotonic(), self._work()
        if worked is not None and worked == self._worked:
            self._seconds += min(now - self._looked_at, 2 * TICK)
        self._looked_at, self._worked = now, worked
        return self._seconds

    def _work(self) -> tuple[str, str] | None:
        """Return the CPU time used so far, as the kernel writes it; None while it runs (proc(5))."""
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:  # it is gone, which its line tells
            return None
        return None if fields[0] == "R" else (fields[11], fields[12])


def _erase_traces(subject: Subject) -> Finding:
    """Return what came of deleting, in a process of its own, what another one has left."""
    tidying, why = _Watched(subject, _erase), "nothing was said of it"
    try:
        for finding in tidying.findings():
            if finding.state is not State.WRONG:
                return finding
            why = finding.seen
    finally:
        tidying.join(0)
    seen = f"what was tried may still be in the store, as job {subject.params.run_id!r}: {why}"
    return warning("traces", seen, "It does no harm; delete it once the store answers.")


def _erase(subject: Subject, report: Report) -> None:
    found = []
    for params in (subject.stranger, subject.params):
        report.at("traces", limit=IMPORT if subject.needs_torch else ANSWER)
        made = subject.plugins.make_rendezvous(params)
        if isinstance(made, RendezvousBackend):
            with closing(made):
                found.append(erase(subject, made))
    report.send(found[-1])


def _body(subject: Subject, body: Examine, line: Connection, watcher: Connection) -> None:
    """Run the examination in its process."""
    watcher.close()
    for signum in (signal.SIGINT, signal.SIGHUP):  # the watching process tells this one
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.alarm(FOR_EVER)
    report = Report(line.send)
    try:
        body(subject, report)
    except BrokenPipeError:  # the watching process is gone; all is cleaned up by now
        return
    except ElasticError as exc:
        report.send(wrong("doctor", in_one_line(exc), exc.hint, exc.exit_code))
    except Exception as exc:
        traceback.print_exc()
        advice = "This is a defect of Elastic or of the backend. Please report it with the lines above."
        report.send(wrong("doctor", in_one_line(exc), advice, ExitCode.INTERNAL))
    with contextlib.suppress(BrokenPipeError):
        line.send(None)  # the examination is over; without this, the process has died in the middle


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP end what goes on as Ctrl-C does."""

    def told(signum: int, _: object) -> None:
        raise Signalled(signum)

    before = {signum: signal.signal(signum, told) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
