"""The cause of a failure: out of a record, which may have any content, an error file of torch's, or stderr."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_causes.find import Found, find_cause, recorded_cause
from elastic_core.causes import DETAIL_MAX_CHARACTERS, MESSAGE_MAX_CHARACTERS, TEXT_MAX_CHARACTERS, headline

CALLSTACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: boom\n'
LIBRARY = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
LOGGED = f"ERROR:root:upload failed\n{CALLSTACK}"


def raised(kind: str, text: str = "", *frames: tuple[str, int, str, str], group: bool = False) -> dict[str, Any]:
    return {"type": kind, "text": text, "frames": [list(frame) for frame in frames], "group": group}


def record(*exceptions: dict[str, Any], by: str = "exception", code: int = 1, text: str = "") -> dict[str, Any]:
    first = exceptions[0] if exceptions else {"type": "", "text": text}
    line = f"{first['type']}: {first['text']}" if exceptions else text
    member = {"by": by, "code": code, "text": text, "exceptions": list(exceptions), "paths": ["/data/a"]}
    message = {"message": line, "errorCode": code, "extraInfo": {"py_callstack": "", "timestamp": "1"}}
    return {"message": message, "elastic": member}


STEP = ("/home/me/train.py", 41, "step", "loss = model(batch)")
MAIN = ("/home/me/train.py", 60, "<module>", "step()")


# An error file without a record, as torch's @record or a script writes it ---------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "exception", "detail"),
    [
        (
            {"message": "ValueError: boom", "extraInfo": {"py_callstack": CALLSTACK, "timestamp": "1753000000"}},
            "ValueError: boom",
            "ValueError",
            CALLSTACK,
        ),
        ("ValueError: boom", "ValueError: boom", "ValueError", "ValueError: boom"),
        ({"message": "boom", "errorCode": 3}, "boom", "", "boom"),
        ({"message": "two\nlines", "extraInfo": {"timestamp": "1"}}, "two", "", "two\nlines"),
        ({"message": "KeyError: 'lr'", "extraInfo": None}, "KeyError: 'lr'", "KeyError", "KeyError: 'lr'"),
        ({"message": "\n  \n  late  \n", "extraInfo": {"py_callstack": ""}}, "late", "", "the end of stderr"),
        ("bell\a and \x1b[31mred", "bell  and red", "", "bell\a and \x1b[31mred"),
        ("half a pair: \ud800.", "half a pair:  .", "", "half a pair: ?."),
    ],
)
def test_an_error_file_of_another_writer_gives_a_message_of_one_line_and_the_traceback(
    error: object, message: str, exception: str, detail: str
) -> None:
    cause = recorded_cause({"message": error}, "the end of stderr")
    assert cause is not None
    assert (cause.message, cause.exception, cause.detail) == (message, exception, detail)


ODD: list[Any] = [
    {},
    {"message": None},
    {"message": 7},
    {"message": " \n "},
    {"message": {}},
    {"message": {"message": 7}},
    {**record(), "elastic": {}},
    {**record(), "elastic": {"exceptions": 7, "paths": []}},
    {**record(), "elastic": {"exceptions": [7], "paths": []}},
    {**record(), "elastic": {"exceptions": [{"type": "E"}], "paths": []}},
    {**record(), "elastic": {"exceptions": [{"type": "E", "text": "", "frames": [[1]]}], "paths": []}},
    {**record(), "elastic": {"exceptions": [], "paths": None}},
]


@pytest.mark.parametrize("content", ODD, ids=lambda content: json.dumps(content)[:60])
def test_a_record_that_makes_no_sense_is_as_good_as_none(content: dict[str, Any]) -> None:
    assert recorded_cause(content, "") is None
    by = {**content, "elastic": {**content["elastic"], "by": "exception"}} if "elastic" in content else content
    assert find_cause(1, by, CALLSTACK).message == "ValueError: boom"


def test_long_texts_are_cut() -> None:
    first = raised("ValueError", "x" * 100_000, ("f" * 1000, 1, "g" * 1000, "c" * 1000))
    cause = recorded_cause(record(first), "s" * 100_000)
    assert cause is not None
    assert len(cause.message) == MESSAGE_MAX_CHARACTERS
    assert len(cause.text) == TEXT_MAX_CHARACTERS
    assert len(cause.detail) <= DETAIL_MAX_CHARACTERS


def test_a_long_traceback_is_kept_from_its_end_in_whole_lines() -> None:
    callstack = "".join(f"  File 'module_{n}.py', line {n}\n" for n in range(1000)) + "RecursionError: too deep\n"
    found = recorded_cause({"message": {"message": "too deep", "extraInfo": {"py_callstack": callstack}}}, "")
    assert found is not None
    assert DETAIL_MAX_CHARACTERS - 50 < len(found.detail) <= DETAIL_MAX_CHARACTERS
    assert callstack.endswith("\n" + found.detail)


# A record -------------------------------------------------------------------------------------------------------------


def test_the_cause_has_the_exception_and_the_innermost_line_of_the_program() -> None:
    library = ("/v/lib/python3.11/site-packages/torch/nn/modules/module.py", 9, "call", "f()")
    cause = recorded_cause(record(raised("ValueError", "a\nb", MAIN, STEP, library)), "stderr")
    assert cause == Found(
        message="ValueError: a",
        exception="ValueError",
        text="ValueError: a\nb",
        detail="stderr",
        where="train.py:41 in step: loss = model(batch)",
        paths=("/data/a",),
    )


@pytest.mark.parametrize(
    ("exceptions", "follows"),
    [
        pytest.param([raised("RuntimeError", GLOO, STEP)], True, id="by its text"),
        pytest.param([raised("RuntimeError", "Socket Timeout", STEP, (LIBRARY, 1, "f", ""))], True, id="by its frames"),
        pytest.param([raised("RuntimeError", "metrics: Socket Timeout", STEP)], False, id="a socket of its own"),
        pytest.param([raised("BrokenPipeError", "[Errno 32] Broken pipe", STEP)], False, id="a pipe of its own"),
        pytest.param([raised("AttributeError", "x"), raised("RuntimeError", GLOO)], True, id="during its handling"),
        pytest.param([raised("ValueError", "x", (LIBRARY, 1, "f", ""))], False, id="another text"),
    ],
)
def test_whether_it_follows_from_a_peer_is_decided_by_each_exception_of_the_chain(
    exceptions: list[dict[str, Any]], follows: bool
) -> None:
    cause = recorded_cause(record(*exceptions), "")
    assert cause is not None
    assert cause.follows_peer is follows


QUOTED = (
    "Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
    '  File "/home/me/data.py", line 8, in __getitem__\n    raise ValueError(x)\nValueError: sample 137\n'
)
SPAWNED = (
    "\n\n-- Process 0 terminated with the following error:\nTraceback (most recent call last):\n"
    '  File "/home/me/a.py", line 2, in f\nKeyError: 1\n'
)
COMPILED = (
    "RuntimeError when making fake tensor call\n  got RuntimeError('a and b must have same size')\n\n"
    'from user code:\n   File "/home/me/model.py", line 7, in forward\n    return x @ y\n\nSet TORCHDYNAMO_VERBOSE=1'
)


@pytest.mark.parametrize(
    ("exceptions", "message", "exception", "where"),
    [
        pytest.param(
            [raised("ValueError", QUOTED, MAIN)],
            "ValueError: sample 137",
            "ValueError",
            "data.py:8 in __getitem__: raise ValueError(x)",
            id="a worker of a DataLoader",
        ),
        pytest.param(
            [raised("torch.multiprocessing.spawn.ProcessRaisedException", SPAWNED, MAIN)],
            "KeyError: 1",
            "KeyError",
            "a.py:2 in f",
            id="a spawned process",
        ),
        pytest.param(
            [raised("torch._dynamo.exc.TorchRuntimeError", COMPILED, MAIN)],
            "torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call: "
            "RuntimeError('a and b must have same size')",
            "torch._dynamo.exc.TorchRuntimeError",
            "model.py:7 in forward: return x @ y",
            id="torch.compile",
        ),
        pytest.param(
            [raised("ExceptionGroup", "2 failed", MAIN, group=True), raised("ValueError", "x", STEP)],
            "ExceptionGroup: 2 failed: ValueError: x",
            "ExceptionGroup",
            "train.py:41 in step: loss = model(batch)",
            id="a group",
        ),
        pytest.param(
            [raised("RuntimeError", f"remote said:\n{CALLSTACK}", MAIN)],
            "RuntimeError: remote said: ValueError: boom",
            "RuntimeError",
            "train.py:60 in <module>: step()",
            id="a text that quotes a traceback",
        ),
        pytest.param(
            [raised("RuntimeError", "Error(s) in loading state_dict for M:\n\tMissing key(s): a", MAIN)],
            "RuntimeError: Error(s) in loading state_dict for M: Missing key(s): a",
            "RuntimeError",
            "train.py:60 in <module>: step()",
            id="a first line that ends with a colon",
        ),
    ],
)
def test_an_exception_that_wraps_another_one_is_unwrapped(
    exceptions: list[dict[str, Any]], message: str, exception: str, where: str
) -> None:
    cause = recorded_cause(record(*exceptions), "")
    assert cause is not None
    assert (cause.message, cause.exception, cause.where) == (message, exception, where)


def test_facts_that_another_writer_has_added_to_the_exception_are_kept() -> None:
    content = record(raised("torch.OutOfMemoryError", "CUDA out of memory"))
    content["message"]["message"] = "OutOfMemoryError: CUDA out of memory (rank 3, step 7)"
    cause = recorded_cause(content, "")
    assert cause is not None
    assert cause.message == "OutOfMemoryError: CUDA out of memory (rank 3, step 7)"


# Which of them counts -------------------------------------------------------------------------------------------------

OWN = raised("ValueError", "x", STEP)


@pytest.mark.parametrize(
    ("code", "content", "reported", "message"),
    [
        pytest.param(1, record(OWN), (True, True), "ValueError: x", id="an exception"),
        pytest.param(-11, record(OWN), (True, True), "ValueError: x", id="an exception, and a crash after it"),
        pytest.param(3, record(OWN, by="exit", code=3), (True, True), "ValueError: x", id="sys.exit in an except"),
        pytest.param(
            1, record(OWN, by="exit", text="no data"), (True, True), "no data", id="sys.exit with a text in an except"
        ),
        pytest.param(1, record(by="exit", text="FATAL"), (True, True), "FATAL", id="sys.exit with a text"),
        pytest.param(17, record(by="exit", code=17), (True, False), "", id="os._exit"),
        pytest.param(4, record(OWN, by="exit", code=3), (True, True), "", id="a sys.exit that the program survived"),
        pytest.param(-9, record(OWN, by="exit", code=3), (True, False), "", id="the same, and SIGKILL"),
        pytest.param(1, record(OWN, by="thread", code=0), (True, True), "ValueError: x", id="an exception of a thread"),
        pytest.param(-9, record(OWN, by="thread", code=0), (True, False), "", id="the same, and SIGKILL"),
        pytest.param(1, {}, (True, True), "", id="a logged exception, and SystemExit"),
        pytest.param(9, {}, (True, False), "ValueError: boom", id="replaced by another program"),
        pytest.param(1, {}, (False, False), "ValueError: boom", id="a program that records nothing"),
        pytest.param(-9, {}, (False, False), "", id="the same, and SIGKILL"),
        pytest.param(-9, {"message": "ValueError: y"}, (False, False), "", id="@record, and SIGKILL"),
        pytest.param(1, {"message": "ValueError: y"}, (False, False), "ValueError: y", id="@record"),
    ],
)
def test_a_record_counts_if_it_explains_the_end(
    code: int, content: dict[str, Any], reported: tuple[bool, bool], message: str
) -> None:
    records, over = reported
    stderr = LOGGED if code != -9 or not content else "[W] retry\n"
    assert find_cause(code, content, stderr, records=records, over=over).message == message


def test_a_text_of_system_exit_is_the_last_line() -> None:
    assert find_cause(1, {}, LOGGED + "FATAL: no data\n\n", records=True, over=True) == Found(
        message="FATAL: no data", detail=LOGGED + "FATAL: no data\n\n"
    )
    assert find_cause(3, {}, "FATAL: no data\n", records=True, over=True).message == ""


def test_of_native_code_that_aborts_the_last_word_counts() -> None:
    thrown = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    stderr = f"{thrown}  what():  NCCL error: remote process exited\n"
    cause = find_cause(-6, {}, stderr)
    assert (cause.exception, cause.follows_peer) == ("c10::DistBackendError", True)
    assert find_cause(-11, {}, stderr) == Found(detail=stderr)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n\n a \nb", "a"),
        ("a:\n\tb\nc", "a: b"),
        ("a:", "a:"),
        ("a:\nTraceback (most\n  x\nKeyError: 1\n", "a: KeyError: 1"),
    ],
)
def test_a_headline_is_the_first_line_that_says_anything(text: str, line: str) -> None:
    assert headline(text) == line
