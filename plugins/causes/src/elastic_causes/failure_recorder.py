"""Writes down the exception that ends a worker, at once, and reports to the agent that the program has failed or ended.

The error file is torch's (``torch.distributed.elastic.multiprocessing.errors``), with one more member, ``elastic``,
which ``find.py`` reads: the exceptions of the chain, each with its type, text and frames. So they need
not be found in the text that a worker has printed.

An uncaught exception of the main thread is recorded by :data:`sys.excepthook`, which calls the hook that was there
before. A script may replace that hook; then the exception is found once the interpreter begins to end, before it joins
threads and calls ``atexit`` functions. ``sys.exit`` and ``os._exit`` note the text, or the exception that is being
handled. An exception that ends another thread is recorded too, but ends nothing by itself.

A program that handles SIGTERM may save, and exit with 0, as if it had finished. So the report of its end says whether
that was just before: its handler is called by one that notes the time, and that the program does not see.

Each Python worker executes this file before its program (``elastic_worker_startup``). Every module that is imported
here would stay in the worker. So only modules that the interpreter has loaded by itself, and ``threading``,
are imported at first; the others once the program has failed.
"""

import _signal  # type: ignore[import-not-found]  # whose functions those of signal call
import io
import os
import sys
import time

TYPE_CHECKING = False  # typing's: see the last paragraph above
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from traceback import StackSummary
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

ERROR_FILE, CONTROL = "TORCHELASTIC_ERROR_FILE", "ELASTIC_CONTROL_FD"  # variables
RECORDING, FAILED, OVER = b'{"type": "recording"}', b'{"type": "failed"}', b'{"type": "over"}'  # ``channel`` has more
TERMINATED = b'{"type": "over", "terminated": true}'
SIGTERM, EMFILE = 15, 24
COLLECTIVES = "gloo", "nccl", "tcpstore"  # what follows from the loss of a peer has nothing to finish: others wait
SAVES_WITHIN_SECONDS = 600.0  # a program that ends later than this after SIGTERM has not ended because of it
MEMBER = "elastic"  # of the error file
EXCEPTION, EXIT, THREAD = "exception", "exit", "thread"
"""The origin of a record: an uncaught exception of the main thread, an exit on purpose, an exception of a thread."""
MOST_EXCEPTIONS = 16  # of a chain, outermost first
MOST_FRAMES = 40  # of an exception, the innermost ones
MOST_CHARACTERS = 4000  # of the text of an exception
MOST_PATHS, MOST_PATH_CHARACTERS = 64, 1024
CALLSTACK_CHARACTERS = 60_000  # the end of the traceback; the agent reads files of 1 MiB at most


class FailureRecorder:
    """Watches how a process ends; ``at_end`` has a function called after those that ``atexit`` calls."""

    def __init__(self, at_end: "Callable[[Callable[[], object]], object]") -> None:
        self._process = 0
        self._channel: tuple[int, int] | None = None  # the descriptor that leads to the agent, and its inode
        self._path = ""
        self._thread = 0
        self._before_threads: Callable[[Callable[[], None]], object] | None = None
        self._recorded: BaseException | None = None  # the exception whose record was written
        self._failed = False  # whether the failure was reported
        self._requested = False  # whether SIGTERM came since
        at_end(self._end)

    def watch(self, environ: "Mapping[str, str]" = os.environ) -> None:
        """Record failures of this process, not of its forks, and report its end to the agent.

        Called in the main thread, before the program begins.
        """
        import threading

        self._process, self._thread = os.getpid(), threading.get_ident()
        path, control = environ.get(ERROR_FILE, ""), environ.get(CONTROL, "")
        self._path = os.path.abspath(path) if path else ""  # the program may change its directory
        try:
            if control.isdigit() and (found := os.fstat(int(control))).st_mode & 0o170000 == 0o140000:  # a socket
                self._channel = int(control), found.st_ino
                os.write(int(control), RECORDING)  # one of the first packets: there is room
        except OSError:
            self._channel = None
        self._watch_main_thread()
        self._watch_threads(threading)
        self._watch_exits(threading)
        self._watch_handler_of_sigterm()
        self._before_threads = getattr(threading, "_register_atexit", None)
        if self._before_threads is not None:  # its functions are called before threads are joined
            self._before_threads(self._look)

    def _watch_main_thread(self) -> None:
        before = sys.excepthook

        def excepthook(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
            if error is not getattr(sys, "last_value", None):
                before(kind, error, trace)  # the program calls the hook to print an exception that it handles
                return
            self._record_main(error)
            _drop_own_frames(error.__traceback__)
            before(kind, error, trace)
            if sys.excepthook is excepthook:
                self._look()
            elif self._is_mine and self._before_threads is not None:  # another hook has called: it may still print
                self._before_threads(self._look)  # again: the function registered last is called first

        # Both, so that a library that asks whether the hook is the usual one finds that it is.
        sys.excepthook = sys.__excepthook__ = excepthook

    def _watch_threads(self, threading: "Any") -> None:
        before = threading.excepthook

        def excepthook(args: "Any") -> None:
            error = args.exc_value
            if not (error is None or isinstance(error, SystemExit)) and self._is_mine and self._recorded is None:
                self._write(THREAD, error)
            before(args)

        threading.excepthook = threading.__excepthook__ = excepthook

    def _watch_exits(self, threading: "Any") -> None:
        leave, thread = os._exit, threading.get_ident

        def exit(status: object = None, /) -> "NoReturn":
            """Exit the interpreter by raising SystemExit(status)."""
            code = status & 0xFF if isinstance(status, int) else 1 if status is not None else 0
            if code and self._is_mine and thread() == self._thread:
                text = "" if isinstance(status, int) else _text(status)
                self._write(EXIT, sys.exc_info()[1], code=code, text=text, frame=sys._getframe(1))
            raise SystemExit(status)

        def _exit(status: int) -> "NoReturn":
            """Exit to the system with specified status, without normal exit processing."""
            if status and self._is_mine and not self._record_main(getattr(sys, "last_value", None)):
                self._write(EXIT, sys.exc_info()[1], code=status, frame=sys._getframe(1))
            if not status and self._is_mine:
                self._report(TERMINATED if _Noting.just_now() else OVER)
            leave(status)

        exit.__module__, exit.__qualname__ = "sys", "exit"  # as pickle finds them
        _exit.__module__, _exit.__qualname__ = "os", "_exit"
        sys.exit, os._exit = exit, _exit

    def _watch_handler_of_sigterm(self) -> None:
        set_handler, get_handler = _signal.signal, _signal.getsignal

        def signal(signum: int, handler: "Any", /) -> "Any":
            noted = signum == SIGTERM and callable(handler)
            return _shown(set_handler(signum, _Noting(handler) if noted else handler))

        def uncounted(send: "Any", module: str) -> "Any":
            def call(*arguments: int) -> None:
                before = _Noting.at
                try:
                    send(*arguments)
                finally:
                    _Noting.at = before

            call.__module__, call.__qualname__ = module, send.__name__  # as pickle finds it
            return call

        _signal.signal, _signal.getsignal = signal, lambda signum, /: _shown(get_handler(signum))
        os.kill, os.killpg = uncounted(os.kill, "os"), uncounted(os.killpg, "os")  # by which it signals itself
        _signal.raise_signal = uncounted(_signal.raise_signal, "signal")

    @property
    def _is_mine(self) -> bool:
        return self._process == os.getpid()

    def _record_main(self, error: object) -> bool:
        """Write the record of the exception that ends the main program; whether it is one."""
        if not self._is_mine or not ends_program(error):
            return False
        if self._recorded is not error:
            self._recorded = error  # type: ignore[assignment]  # as ends_program has found
            self._write(EXCEPTION, error, code=1)
        return True

    def _look(self) -> None:
        """Report a failure, once its traceback is printed."""
        if not self._failed and self._record_main(getattr(sys, "last_value", None)):
            self._failed = True
            _flush()  # as is done before the process ends
            if not any(library in _text(error).lower() for error in _chain(self._recorded) for library in COLLECTIVES):
                self._put_off_requests_to_end()
            self._report(FAILED)

    def _end(self) -> None:
        """Be the last function at the end."""
        if not self._is_mine:
            return
        self._look()
        if self._failed:
            self._end_if_requested()
        else:
            self._report(TERMINATED if _Noting.just_now() else OVER)
        self._process, self._recorded = 0, None  # frames: objects of the program are destroyed now

    def _put_off_requests_to_end(self) -> None:
        """Let ``atexit`` functions finish, such as a tracker's, although the agent stops the round at once."""
        _signal.signal(SIGTERM, lambda *_: setattr(self, "_requested", True))

    def _end_if_requested(self) -> None:
        _signal.signal(SIGTERM, _signal.SIG_DFL)
        if self._requested:
            _flush()  # what atexit functions have printed
            os.kill(self._process, SIGTERM)

    def _report(self, packet: bytes) -> None:
        """Send the agent a packet, without waiting. A script may have closed the descriptor, or may use its number."""
        try:
            if self._channel is not None and os.fstat(self._channel[0]).st_ino == self._channel[1]:
                os.set_blocking(self._channel[0], False)
                os.write(self._channel[0], packet)
                os.set_blocking(self._channel[0], True)
        except OSError:
            return

    def _write(
        self, how: str, error: object, *, code: int = 0, text: str = "", frame: "FrameType | None" = None
    ) -> None:
        """Write the error file; ``frame`` is the caller of an exit. Nothing that fails here may hide the failure."""
        try:
            if self._path:
                if how != THREAD:
                    _free_descriptor()
                import json
                import traceback

                raised = error if isinstance(error, BaseException) else None
                data = _record(how, raised, code, text, _read(self._path))
                data[MEMBER].setdefault("frames", _rows(traceback.extract_stack(frame, MOST_FRAMES)) if frame else [])
                scratch = f"{self._path}.{self._process}"
                with open(scratch, "w", encoding="utf-8") as file:
                    json.dump(data, file)
                os.rename(scratch, self._path)
        except Exception:
            return


class _Noting:
    """Calls the program's handler of SIGTERM."""

    at = -SAVES_WITHIN_SECONDS  # when it last did, on the monotonic clock

    def __init__(self, handler: "Callable[[int, FrameType | None], Any]") -> None:
        self.handler = handler

    def __call__(self, number: int, frame: "FrameType | None") -> "Any":
        _Noting.at = time.monotonic()
        return self.handler(number, frame)

    @classmethod
    def just_now(cls) -> bool:
        """Return True if the program may have ended because of the signal."""
        return time.monotonic() - cls.at < SAVES_WITHIN_SECONDS


def _shown(handler: "Any") -> "Any":
    return handler.handler if isinstance(handler, _Noting) else handler


def prepare(at_end: "Callable[[Callable[[], object]], object]") -> None:
    """Record failures of this worker, and have a fatal signal such as SIGSEGV write the Python stacks to stderr."""
    is_new = "faulthandler" not in sys.modules
    import faulthandler

    if is_new:
        del sys.modules["faulthandler"]  # the program finds it only where it would anyway
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable()
    except (OSError, RuntimeError, ValueError):  # no stderr: faulthandler has nowhere to write
        pass
    FailureRecorder(at_end).watch()


def ends_program(error: object) -> bool:
    """Return True if an exception that was printed has ended the main program, so that the exit code is 1.

    The traceback of such an exception begins at the bottom of the stack; one from a callback of C code or an
    interactive console does not. Ctrl-C ends in a signal. A program that cannot be compiled has no traceback.
    """
    if not isinstance(error, BaseException) or isinstance(error, KeyboardInterrupt):
        return False
    if error.__traceback__ is None:
        return isinstance(error, SyntaxError)
    frame = error.__traceback__.tb_frame
    if frame.f_back is not None:
        return False
    by_runpy = frame.f_globals.get("__name__") == "runpy"  # python -m, a directory, a zip file
    return by_runpy or (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__")


def _record(
    how: str, error: "BaseException | None", code: int, text: str, before: "dict[str, Any]"
) -> "dict[str, Any]":
    """Return the contents of the error file; ``before`` is what it holds of the same exception or of a thread's."""
    import traceback

    if error is None and not text and before.get(MEMBER, {}).get("by") == THREAD:
        return {**before, MEMBER: {**before[MEMBER], "by": how, "code": code}}
    chain = list(_chain(error))
    found = [_describe(one) for one in chain]
    paths = _paths(chain, [one["text"] for one in found])
    member = {"by": how, "code": code, "text": text[:MOST_CHARACTERS], "exceptions": found, "paths": paths}
    message = {} if MEMBER in before else before.get("message")
    if error is None or not _is_of(message, type(error).__name__, found[0]["text"]):
        lines = () if error is None else traceback.format_exception(type(error), error, error.__traceback__)
        said = f"{found[0]['type']}: {found[0]['text']}".removesuffix(": ") if found else text
        extra = {"py_callstack": "".join(lines)[-CALLSTACK_CHARACTERS:], "timestamp": str(int(time.time()))}
        message = {"message": said[:MOST_CHARACTERS], "errorCode": code, "extraInfo": extra}
    return {"message": message, MEMBER: member}


def _is_of(message: object, name: str, text: str) -> bool:
    """Return True if the message of an error file, which a decorator has written, is that of an exception."""
    said = message.get("message") if isinstance(message, dict) else message
    return isinstance(said, str) and (
        said.startswith(f"{name}: {text}"[:MOST_CHARACTERS]) or name == "ChildFailedError"
    )


def _chain(error: "BaseException | None") -> "Iterator[BaseException]":
    """Yield an exception and those from which it was raised, or during whose handling; of a group its members first."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MOST_EXCEPTIONS:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting[:0] = [each for each in _members(one) or () if isinstance(each, BaseException)]
        waiting.append(one.__cause__ if one.__cause__ is not None or one.__suppress_context__ else one.__context__)


def _drop_own_frames(trace: "TracebackType | None") -> None:
    """Drop the frames of this module, as of ``raise_signal(SIGINT)``, which the program has not written."""
    own = _drop_own_frames.__code__.co_filename
    while trace is not None:
        while (after := trace.tb_next) is not None and after.tb_frame.f_code.co_filename == own:
            trace.tb_next = after.tb_next
        trace = trace.tb_next


def _members(error: BaseException) -> "tuple[object, ...] | None":
    """Return the members of an exception group; None for another exception."""
    try:
        inner = getattr(error, "exceptions", None)
    except Exception:  # a property of the program's own class
        return None
    return inner if isinstance(inner, tuple) else None


def _describe(error: BaseException) -> "dict[str, Any]":
    import traceback

    frames = _rows(traceback.extract_tb(error.__traceback__, -MOST_FRAMES))
    if isinstance(error, SyntaxError) and error.filename:
        frames.append([error.filename, error.lineno or 0, "<module>", (error.text or "").strip()[:200]])
    text, group = _text(error)[:MOST_CHARACTERS], _members(error) is not None
    return {"type": _name(type(error)), "text": text, "frames": frames, "group": group}


def _rows(stack: "StackSummary") -> "list[list[object]]":
    return [[call.filename, call.lineno or 0, call.name, (call.line or "")[:200]] for call in stack]


def _free_descriptor() -> None:
    """Close stdin if no descriptor is left for the error file."""
    try:
        os.close(os.dup(1))
    except OSError as exc:
        if exc.errno == EMFILE:
            os.close(0)


def _paths(chain: "list[BaseException]", texts: "list[str]") -> "list[str]":
    """Return the paths that these exceptions name, or that the library functions hold which have raised them.

    The variables of the program's own functions are left out: they name files that the failure has nothing to do with.
    """
    import re
    import traceback

    found: dict[str, None] = {}
    for error, text in zip(chain, texts):  # noqa: B905  (of one length)
        values = [getattr(error, "filename", None), getattr(error, "filename2", None)]
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            if not _is_library(frame.f_code.co_filename):
                break
            values += frame.f_locals.values()
        for value in [*values, *re.findall(r"[^\s'\"<>:,;()\[\]]+", text)]:
            try:
                kind = type(value)
                value = value.name if issubclass(kind, io.IOBase) else value
                path = str(value) if isinstance(value, str) or kind.__module__.startswith("pathlib") else ""
            except Exception:  # of a detached file, or of a type of the program's own
                continue
            if os.sep in path and len(path) < MOST_PATH_CHARACTERS and path.isprintable():
                found[os.path.abspath(path)] = None
    return list(found)[:MOST_PATHS]


def _is_library(file: str) -> bool:
    return file.startswith(("<", os.path.dirname(os.__file__))) or "-packages" + os.sep in file


def _name(kind: type) -> str:
    """Return the name of an exception's type as a traceback has it."""
    module = getattr(kind, "__module__", None)
    return kind.__qualname__ if module in ("builtins", "__main__", None) else f"{module}.{kind.__qualname__}"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return "<its text cannot be made>"


def _read(path: str) -> "dict[str, Any]":
    import json

    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # there is none, or it is a stream of the program's own
            continue
