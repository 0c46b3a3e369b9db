from __future__ import annotations

import ast
import inspect
import re
import signal
from pathlib import Path

from elastic_core import exit_codes
from elastic_core.exit_codes import ExitCode, describe_exit, signal_name, signalled

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "exit_codes.md"


def documented_in_code() -> dict[str, tuple[int, str]]:
    """Name, number and docstring of every code, from the source: Python forgets the docstrings of attributes."""
    (table,) = (node for node in ast.parse(inspect.getsource(exit_codes)).body if isinstance(node, ast.ClassDef))
    found = {}
    for code, text in zip(table.body, table.body[1:], strict=False):
        match code, text:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(int(number))), ast.Expr(
                ast.Constant(str(doc))
            ):
                found[name] = (number, doc)
    return found


def test_the_document_lists_exactly_the_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: (int(number), meaning) for number, name, meaning in rows} == documented_in_code()


def test_every_code_says_what_it_means() -> None:
    assert {name: number for name, (number, _) in documented_in_code().items()} == {
        code.name: code.value for code in ExitCode
    }


def test_a_signal_is_reported_as_a_shell_does() -> None:
    assert signalled(signal.SIGTERM) == 143
    assert signalled(signal.SIGINT) == 130


def test_signals_go_by_their_names() -> None:
    assert [signal_name(9), signal_name(77)] == ["SIGKILL", "signal 77"]


def test_a_request_for_a_stack_is_named() -> None:
    for signum in exit_codes.STACK_REQUESTS:
        assert describe_exit(-signum) == f"was killed by signal {signum} (Elastic's request for a stack)"


def test_an_end_reads_as_the_predicate_of_a_sentence() -> None:
    assert [describe_exit(code) for code in (0, 2, -9, -77)] == [
        "exited with code 0",
        "exited with code 2",
        "was killed by SIGKILL",
        "was killed by signal 77",
    ]
