"""Finds out why a worker failed: from the exception that it recorded, or from what native code wrote last.

The error file is torch's (``torch.distributed.elastic.multiprocessing.errors``), with one more member, the record that
``failure_recorder.py`` writes. The end of stderr is read only where there can be no record: for a signal, and
for a program that is not Python. There only what stands last counts: a program may log an exception, go on, and end for
another reason. Both sources are untrusted input, and nothing here raises.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_causes.failure_recorder import EXCEPTION, EXIT, MEMBER, THREAD
from elastic_causes.frames import Frame, parse_frames
from elastic_core.causes import (
    DETAIL_MAX_CHARACTERS,
    EXCEPTION_EXIT_CODE,
    MESSAGE_MAX_CHARACTERS,
    TEXT_MAX_CHARACTERS,
    Cause,
    headline,
    last_line,
    last_lines,
    one_line,
)
from elastic_core.progress import step_of_path

ROOT_MAX_CHARACTERS = 240  # of the message of an exception, and of that of the first of its chain
_CPP_EXCEPTION = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']{1,200})'")
_QUOTING = re.compile(
    r"Caught \S{1,200} in [^\n]{1,200}\nOriginal Traceback \(most recent call last\):"  # torch: a DataLoader's worker
    r"|\s*-- Process \d{1,9} terminated with the following error:"  # torch.multiprocessing.spawn
)
"""The beginning of an exception's text in which a library quotes that of another process, with its traceback."""
_INNER = re.compile(r"\bgot (?P<line>\w+(?:Error|Exception)\(.{0,400}\))\s*$", re.MULTILINE)
"""The exception that ``torch.compile`` caught while it traced an operation: ``got RuntimeError('…')``."""
_PREFIX = r"(?:\[[\w-]*\d+\]: ?)*"  # torch puts "[rank0]: " before each line, and twice in a group that was made twice
_TERMINATE = re.compile(
    rf"^{_PREFIX}(?P<line>terminate called [^\n]*)(?:\n{_PREFIX} *what\(\): (?P<what>[^\n]*))?", re.MULTILINE
)
_ABORT = re.compile(
    rf"^{_PREFIX}(?P<line>(?:double free|free\(\): |munmap_chunk\(\): |malloc\(\): |corrupted |\*\*\* )[^\n]*"
    r"|[^\n]*: Assertion [^\n]* failed\.)$",
    re.MULTILINE,
)
_TRACEBACK = re.compile(rf"{_PREFIX}(?:Original )?Traceback \(most recent call last\):\s*")
_EXCEPTION = re.compile(rf"{_PREFIX}(?P<line>(?P<name>(?:[\w<>]+\.)*[^\W\d]\w*)(?:: .*|:|))\s*")
_USUAL_NAME = re.compile(r".*(?:Error|Exception|Interrupt|Exit|Failure)|ExceptionGroup")
_LEADING_PREFIX = re.compile(rf"^{_PREFIX}", re.MULTILINE)
_LOG_LINE = re.compile(r"\[[WEI]\d{0,4} ")  # ``[W1124 …``, which torch's logger writes while the process ends
_FATAL = "Fatal Python error: "
_CURRENT_THREAD = re.compile(r"^Current thread 0x[^\n]*\(most recent call first\):\n", re.MULTILINE)
CONTINUATION_MAX_LINES = 12  # of an exception's text after its first line
PEER_LOSS_PATTERNS: Mapping[str, str] = {
    "the kernel: the peer's process has ended": r"connection (closed|reset) by peer|broken pipe",
    "gloo: the peer does not answer": r"timed out waiting \d{1,12} ?ms for (send|recv)|application timeout caused pair",
    "gloo: the peer cannot be reached": r"gloo connectfullmesh failed",
    "gloo: a rank did not come to monitored_barrier": r"failed to pass monitoredb|successfully reached monitoredb",
    "NCCL: the peer's process has ended": r"ncclremoteerror|remote process exited|peer process terminated",
    "NCCL: the peer does not answer": r"caught collective operation timeout|operations have failed or timed out",
    "NCCL: torch has given the group up": r"nccl communicator was aborted|timeout signal from another rank",
    "TCPStore: the peer does not come": r"socket timeout|wait timeout after \d{1,9} ?ms|/\d{1,6} clients joined",
    "TCPStore: the peer that holds it is gone": r"failed to recv, got 0 bytes|distnetworkerror",
}
"""Messages of a worker whose peer has failed, by their meaning; regular expressions in lower case."""
_PEER_LOSS = re.compile("|".join(PEER_LOSS_PATTERNS.values()), re.IGNORECASE)
_DISTRIBUTED = re.compile(r"/torch/distributed/(?!elastic/)")
_OF_COLLECTIVES = re.compile(
    r"gloo|nccl|c10d|tcpstore|torch[./]distributed|processgroup|monitoredbarrier|clients joined"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Cause):
    """A cause, and the files and directories that the exceptions name, or that a variable of their frames holds."""

    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Raised:
    """One exception of a record."""

    type: str
    text: str
    frames: tuple[Frame, ...]
    group: bool

    @property
    def line(self) -> str:
        """The exception as a traceback ends."""
        return f"{self.type}: {self.text}" if self.text else self.type

    @property
    def is_peer_loss(self) -> bool:
        """True if it says that a peer was lost."""
        own = max((at for at, frame in enumerate(self.frames) if not frame.is_library), default=-1)
        return is_peer_loss(self.line, "\n".join(frame.file for frame in self.frames[own + 1 :]))


def find_cause(
    exit_code: int, error_file: Mapping[str, Any], stderr: str, *, records: bool = False, over: bool = False
) -> Found:
    """Return why a worker failed, as far as its error file and the end of its stderr tell.

    Args:
        exit_code: As of :class:`subprocess.Popen`.
        error_file: The contents of its error file; empty for none.
        stderr: The end of its stderr.
        records: As of :class:`~elastic_core.causes.EndedWorker`, like ``over``.
    """
    if _ends(error_file.get(MEMBER), exit_code, over) and (recorded := recorded_cause(error_file, stderr)) is not None:
        return recorded
    if exit_code < 0:
        return _of_signal(exit_code, stderr)
    if not records or not over:  # no Python, or a process that Python did not end
        return printed_cause(stderr)
    # ``raise SystemExit("the reason")``, whose text the interpreter prints last.
    spoken = exit_code == EXCEPTION_EXIT_CODE and printed_exception(stderr, within=0) is None
    return Found(message=last_line(stderr) if spoken else "", detail=stderr[-DETAIL_MAX_CHARACTERS:])


def is_ending(error_file: Mapping[str, Any]) -> bool:
    """Return True if a running worker has recorded what ends its program."""
    member = error_file.get(MEMBER)
    return isinstance(member, dict) and member.get("by") in (EXCEPTION, EXIT)


def _ends(member: object, exit_code: int, over: bool) -> bool:
    """Return True if a record explains an exit code: a program may survive a ``sys.exit``, and the end of a thread.

    An exception that has ended the program does, although its process may crash after that.
    """
    if not isinstance(member, dict):
        return exit_code >= 0  # torch's @record has written it, and the program may have gone on before a signal
    by = member.get("by")
    return (
        by == EXCEPTION or (by == EXIT and member.get("code") == exit_code) or (by == THREAD and over and exit_code > 0)
    )


def printed_cause(stderr: str) -> Found:
    """Return the cause of a program that records none: the Python exception that stands last in its stderr, if any."""
    detail = stderr[-DETAIL_MAX_CHARACTERS:]
    if (printed := printed_exception(stderr)) is None:
        return Found(text=last_line(stderr), detail=detail)
    name, lines, frames = printed
    raised = _Raised(name, lines.partition(": ")[2], tuple(frames), group=False)
    return Found(
        message=headline(lines),
        exception=name,
        follows_peer=raised.is_peer_loss,
        text=lines[:TEXT_MAX_CHARACTERS],
        detail=detail,
        where=_where(frames),
    )


def _of_signal(exit_code: int, stderr: str) -> Found:
    """Return the cause of a process that a signal has ended: what native code and faulthandler wrote before."""
    frames = crashed_thread(stderr)
    aborted, crash = exit_code == -signal.SIGABRT, ""
    message = last_abort_line(stderr) if aborted else ""
    if frames is not None:  # of all stacks, that of the thread that crashed comes last
        before, fatal, dump = stderr.rpartition("Fatal Python error: ")
        title, current = dump.partition("\n")[0], dump[dump.find("Current thread 0x") :].partition("\n\n")[0]
        crash = f"{fatal}{title}\n\n{current}\n"
        stderr = before + crash
        message = message or (f"{fatal}{title}" if aborted and title != "Aborted" else "")
    native = _CPP_EXCEPTION.match(message)
    text = f"{message}\n{stderr[-TEXT_MAX_CHARACTERS:]}" if aborted else crash[:TEXT_MAX_CHARACTERS]
    return Found(
        message=message[:MESSAGE_MAX_CHARACTERS],
        exception="" if native is None else native["type"],
        follows_peer=aborted and is_peer_loss(text),
        text=text,
        detail=stderr[-DETAIL_MAX_CHARACTERS:],
        where=_where(frames or ()),
    )


def recorded_cause(error_file: Mapping[str, Any], stderr: str) -> Found | None:
    """Return the cause that an error file records; None if it records none. ``stderr`` is shown without a traceback."""
    found = error_file.get(MEMBER)
    ours = isinstance(found, dict)  # else torch's @record alone has written it, or a script
    member: dict[str, Any] = found if isinstance(found, dict) else {"exceptions": (), "paths": ()}
    try:
        said, callstack = _message(error_file["message"])
        raised = [_raised(one) for one in member["exceptions"]]
        paths = tuple(map(str, member["paths"]))
        stack = _read_frames(member.get("frames", ())) if ours else parse_frames(callstack)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not ours and not said.strip():
        return None
    detail = last_lines((callstack or stderr).encode(errors="replace"), DETAIL_MAX_CHARACTERS)
    if not raised:
        text = str(member.get("text", "")) if ours else said  # of an exit on purpose
        return Found(
            message=headline(text),
            exception="" if ours else _leading_name(said),
            follows_peer=is_peer_loss(text, callstack),
            text=text[:TEXT_MAX_CHARACTERS],
            detail=detail,
            where=_where(stack),
        )
    first = raised[0]
    frames: Sequence[Frame] = first.frames
    message, exception = headline(said if _names(said, first) else first.line), first.type
    if first.group and (leaf := next((one for one in raised if not one.group), None)) is not None:
        message, frames = f"{message}: {headline(leaf.line)}", leaf.frames or first.frames
    elif (quote := _QUOTING.match(first.text)) is not None:
        if (quoted := printed_exception(first.text[quote.start() :], within=None)) is not None:
            exception, lines, frames = quoted[0], quoted[1], quoted[2] or frames
            message = headline(lines)
    elif first.type.startswith("torch._"):  # of torch.compile
        if (inner := _INNER.search(first.text)) is not None:
            message = f"{message}: {inner['line']}"
        frames = parse_frames(first.text.partition("\nfrom user code:")[2]) or frames
    remote = next((one.text for one in raised if one.type.endswith("RemoteTraceback")), "")  # of a pool's process
    if (quoted := printed_exception(remote, within=None)) is not None:
        frames = quoted[2] or frames
    elif not first.group and len(raised) > 1:
        message = f"{message[:ROOT_MAX_CHARACTERS]} (after {headline(raised[-1].line)[:ROOT_MAX_CHARACTERS]})"
    if (own := member.get("text")) and isinstance(own, str):
        message = headline(own)  # ``sys.exit("the reason")`` while the exception was handled
    of_user = (each for each in (frames, *(one.frames for one in raised)) if any(not one.is_library for one in each))
    return Found(
        message=message[:MESSAGE_MAX_CHARACTERS],
        exception=exception,
        follows_peer=any(one.is_peer_loss for one in raised),
        text="\n".join(one.line for one in raised)[:TEXT_MAX_CHARACTERS],
        detail=detail,
        where=_where(next(of_user, first.frames)),
        paths=paths,
    )


def named_checkpoint(paths: Iterable[str], place: str | None) -> str:
    """Return the checkpoint that a failure names: the first folder or file with a step in its name, or else the file.

    Args:
        paths: The paths that the failure names, the innermost first.
        place: ``--checkpoint_path``, below which the checkpoint lies. Without it, only a name with a step is one.
    """
    base = "" if place is None else os.path.abspath(place)
    while glob.has_magic(base) and not os.path.lexists(base):
        base = os.path.dirname(base)
    for path in paths:
        if base and path != base and not path.startswith(f"{base}{os.sep}"):
            continue
        parts = path[len(base) :].split(os.sep)
        stepped = next((at for at, part in enumerate(parts) if step_of_path(part) is not None), None)
        if stepped is not None:
            return base + os.sep.join(parts[: stepped + 1])
        if base and os.path.basename(path) and path != base:
            return path
    return base if base and base in paths and not os.path.isdir(base) else ""


def _message(message: Any) -> tuple[str, str]:
    """Return the message and the traceback of an error file as torch's handlers write it, or as a text alone."""
    if isinstance(message, str):
        return message, message
    extra = message.get("extraInfo")
    callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
    said = message["message"]
    if not isinstance(said, str):
        raise ValueError(said)
    return said, callstack if isinstance(callstack, str) else said


def _raised(recorded: Any) -> _Raised:
    frames = _read_frames(recorded["frames"])
    return _Raised(str(recorded["type"]), str(recorded["text"]), frames, bool(recorded.get("group")))


def _read_frames(recorded: Any) -> tuple[Frame, ...]:
    return tuple(Frame(str(file), int(line), str(name), str(code)) for file, line, name, code in recorded)


def _names(said: str, raised: _Raised) -> bool:
    """Return True if the message of an error file names this exception, with facts that its writer has added."""
    name, text = _leading_name(said), said.strip().partition(":")[2].strip()
    return name.rpartition(".")[2] == raised.type.rpartition(".")[2] and text != raised.text.strip()


def _leading_name(text: str) -> str:
    name, colon, _ = text.strip().partition(":")
    return name if colon and re.fullmatch(r"(?:[^\W\d]\w*\.)*[^\W\d]\w*", name) else ""


def _where(frames: Sequence[Frame]) -> str:
    return "" if (found := innermost(frames)) is None else str(found)


def last_abort_line(stderr_tail: str) -> str:
    """Return what native code wrote before it aborted (SIGABRT), in one line; '' if it wrote nothing that is known.

    ``terminate called after throwing an instance of 'std::runtime_error': what(): socket closed`` for C++, else the
    last line of the C library's, or of a failed assertion.
    """
    if terminations := list(_TERMINATE.finditer(stderr_tail)):
        last = terminations[-1]
        return one_line(f"{last['line']}: what(): {last['what'].strip()}" if last["what"] else last["line"])
    aborts = list(_ABORT.finditer(stderr_tail))
    return one_line(aborts[-1]["line"]) if aborts else ""


def telling_lines(stderr: str, limit: int) -> str:
    """Return the last whole lines of stderr in at most ``limit`` bytes, with what led to a fatal signal.

    faulthandler writes the stacks of all threads after the message of native code, and may write more than ``limit``.
    Then one half is from before ``Fatal Python error``, and the other is that line and the current thread's stack.
    """
    data = stderr.encode()
    at = data.rfind(_FATAL.encode())
    if at < 0 or len(data) - at <= limit // 2:
        return last_lines(data, limit)
    title = data[at : data.find(b"\n", at) + 1]
    current = max(data.find(b"Current thread 0x", at), at + len(title))
    stack = data[current : current + limit // 2 - len(title)]
    return last_lines(data[:at], limit // 2) + (title + stack[: stack.rfind(b"\n") + 1]).decode(errors="replace")


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own program; of Python or a package where there is nothing else.

    ``frames`` begin with the outermost call.
    """
    own = [frame for frame in frames if not frame.is_library]
    return (own or frames)[-1] if frames else None


def crashed_thread(text: str) -> list[Frame] | None:
    """Return the stack of the thread that a fatal signal hit, outermost call first; None without a dump of it."""
    start = text.rfind(_FATAL)
    if start < 0 or (current := _CURRENT_THREAD.search(text, start)) is None:
        return None
    return parse_frames(text[current.end() :].partition("\n\n")[0])[::-1]


def printed_exception(text: str, within: int | None = CONTINUATION_MAX_LINES) -> tuple[str, str, list[Frame]] | None:
    """Return the type, the text and the stack of the Python exception that stands last in a text; None for none.

    Args:
        text: The end of what a program has written.
        within: How many lines may follow the line that names the exception; None for any number.
    """
    lines = _LEADING_PREFIX.sub("", text).splitlines()
    starts = [index for index, line in enumerate(lines) if _TRACEBACK.fullmatch(line)]
    begin = starts[-1] if starts else 0
    usual = not starts  # the start is cut off, or it is a SyntaxError: then the name has to look like an exception's
    for number in range(begin + bool(starts), len(lines)):  # indented lines are the stack
        match = _EXCEPTION.fullmatch(lines[number])
        if match is None or (usual and not _USUAL_NAME.fullmatch(match["name"])):
            continue
        rest = filter(_is_text, itertools.islice(lines, number + 1, None))
        if within is not None and any(line.strip() for line in itertools.islice(rest, within, None)):
            if usual:
                continue
            return None
        said = "\n".join([match["line"], *itertools.takewhile(_is_text, lines[number + 1 :])]).rstrip()
        return match["name"], said, parse_frames("\n".join(lines[begin:number]))
    return None


def _is_text(line: str) -> bool:
    return not _LOG_LINE.match(line)


def is_peer_loss(text: str, origin: str = "") -> bool:
    """Return True if a text is that of a collective, or of torch's store, that has lost a peer.

    Args:
        text: The text of an exception with its type, or what native code wrote before it aborted.
        origin: The files of the library functions that raised it. A program's own sockets and pipes break too, so the
            text must be of gloo, NCCL or torch's store, or a function of ``torch.distributed``.
    """
    if _PEER_LOSS.search(text) is None:
        return False
    return _OF_COLLECTIVES.search(text.lower()) is not None or _DISTRIBUTED.search(origin) is not None
