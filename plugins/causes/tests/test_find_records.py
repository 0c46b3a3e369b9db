"""The error files of a failed worker: whatever they hold, the result is short and readable, or empty."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from elastic_causes.find import crashed_thread, innermost, last_abort_line, telling_lines
from elastic_core.causes import last_lines, one_line
from elastic_core.worker.error_file import read_error_file

# The error file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\xff\xfe not JSON",
        b'{"message": "its writer was ki',
        b'"a text"',
        b"[1, 2]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b"1" * 100_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace") or "empty",
)
def test_an_error_file_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "error.json"
    file.write_bytes(content)
    assert read_error_file(file) == {}


def test_a_file_of_many_megabytes_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    with file.open("wb") as opened:
        opened.write(b'{"message": "boom"}')
        opened.truncate(1 << 33)  # of holes, which are no JSON
    assert read_error_file(file) == {}


@pytest.mark.parametrize("kind", ["nothing", "directory", "link", "fifo", "socket", "device"])
def test_only_a_plain_file_is_read_and_nothing_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "error.json"
    real = tmp_path / "real.json"
    real.write_text('{"message": "boom"}')
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(real)
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        case "device":
            path = Path("/dev/zero")
    assert read_error_file(real) == {"message": "boom"}
    assert read_error_file(path) == {}


# The end of stderr ---------------------------------------------------------------------------------------------------

THROWN = "terminate called after throwing an instance of 'std::runtime_error'\n"


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        pytest.param(f"step 1\n{THROWN}  what():  boom\n", f"{THROWN.strip()}: what(): boom", id="C++"),
        pytest.param(
            f"[rank3]: {THROWN}[rank3]:   what():  boom\n", f"{THROWN.strip()}: what(): boom", id="with a prefix"
        ),
        pytest.param(
            f"{THROWN}  what():  boom\nFatal Python error: Aborted\n*** end ***\n",
            f"{THROWN.strip()}: what(): boom",
            id="C++, and a stack of Python's",
        ),
        pytest.param(f"{THROWN}x what(): boom\n", THROWN.strip(), id="without a text"),
        pytest.param("terminate called without an active exception\n", "terminate called without an active exception"),
        pytest.param("free(): invalid pointer\n", "free(): invalid pointer", id="the C library"),
        pytest.param("a\ndouble free or corruption (out)\n", "double free or corruption (out)"),
        pytest.param("*** stack smashing detected ***: terminated\n", "*** stack smashing detected ***: terminated"),
        pytest.param(
            "python: pool.c:12: take: Assertion `size > 0' failed.\nbye\n",
            "python: pool.c:12: take: Assertion `size > 0' failed.",
            id="an assertion",
        ),
        pytest.param("Traceback (most recent call last):\nValueError: boom\n", "", id="none of these"),
        pytest.param("he said: terminate called\n", "", id="not at the beginning of a line"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_the_last_line_of_native_code_before_an_abort_is_found(stderr: str, line: str) -> None:
    assert last_abort_line(stderr) == line


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("\n\t\n", ""), ("a\nb", "a"), ("\n b \n", "b"), ("tab\there", "tab here")]
)
def test_one_line_is_the_first_that_says_anything(text: str, line: str) -> None:
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"12345678\n1234567\n", "1234567\n"),
        (b"x\n123456789\n", "123456789\n"),  # the limit falls between two lines
        (b"x\n1234\n678\n", "1234\n678\n"),
        (b"a longer line\n", "nger line\n"),
        (b"no newline at all", "ine at all"),
        (b"a\nno newline", "no newline"),
        (b"\n" * 20, "\n" * 10),
        (b"x" * 12 + b"\n\n", "\n"),
        (b"caf\xc3\xa9\n", "café\n"),
        (b"\xff\x00\n", "\N{REPLACEMENT CHARACTER}\0\n"),
        (b"1234567\xc3\xa9 + 8 more", "\N{REPLACEMENT CHARACTER} + 8 more"),  # cut through the middle of a letter
    ],
)
def test_the_last_whole_lines_within_the_limit_are_kept(data: bytes, kept: str) -> None:
    assert last_lines(data, 10) == kept


def test_the_line_of_native_code_is_kept_before_long_stacks() -> None:
    thread = '  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773 in _call_impl\n'
    stacks = f"Thread 0x01 (most recent call first):\n{60 * thread}\nCurrent thread 0x02 (most recent call first):\n"
    own = '  File "/home/me/train.py", line 41 in step\n'
    text = f"step 812\nterminate called after throwing an instance of 'X'\nFatal Python error: Aborted\n\n{stacks}{own}"
    told = telling_lines(text + 60 * thread, 4096)
    assert len(told) <= 4096
    assert told.startswith(
        "step 812\nterminate called after throwing an instance of 'X'\nFatal Python error: Aborted\n"
    )
    assert own in told
    assert "Thread 0x01" not in told
    frames = crashed_thread(told)
    assert frames is not None
    assert str(innermost(frames)) == "train.py:41 in step"
    short = text[: text.index("Thread 0x01")]
    assert telling_lines(short, 4096) == short
