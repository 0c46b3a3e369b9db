from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import elastic_core
from elastic_core.config import environment
from elastic_core.config.environment import flag_variable, inheritable

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| \S.* \|$", PAGE, re.MULTILINE)
SOURCES = [path for path in Path(elastic_core.__file__).parent.rglob("*.py") if path != Path(environment.__file__)]
PLUGINS = [path for name in ("devices", "torchrun") for path in (ROOT / "plugins" / name / "src").rglob("*.py")]
"""These read a few of their own."""


def texts(tree: ast.AST) -> set[str]:
    """Every string constant."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def keys(tree: ast.AST) -> Iterator[ast.expr]:
    """Whatever something called an environment is asked for."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Subscript(value=asked, slice=key)
                | ast.Call(func=ast.Attribute(value=asked), args=[key, *_])
                | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[asked])
            ) if re.search(r"\b_?(environ|env)$|\bos$", ast.unparse(asked)):
                yield key


def used(source: str) -> set[str]:
    """The environment variables that a module reads, and Elastic's own wherever they are named."""
    tree = ast.parse(source)
    asked = {text for key in keys(tree) for text in texts(key)}
    return {text for text in asked if text.isupper()} | {text for text in texts(tree) if _is_ours(text)}


def _is_ours(text: str) -> bool:
    return re.fullmatch(r"ELASTIC_[A-Z_]*[A-Z]", text) is not None


def test_reading_a_variable_is_noticed_however_it_is_spelled() -> None:
    source = """
        a = os.environ["A"] + os.environ.get("B_B", "") + os.getenv("C")
        if "D" in self._environ: environ.setdefault("E", "1")
        env = {"ELASTIC_F": "1", "OTHER": "2"}
    """
    assert used("if True:\n" + source) == {"A", "B_B", "C", "D", "E", "ELASTIC_F"}


def test_every_variable_that_the_code_reads_is_listed() -> None:
    unlisted = {path.name: used(path.read_text()) - {*ROWS} for path in SOURCES}
    assert {name: variables for name, variables in unlisted.items() if variables} == {}


def test_every_variable_that_is_listed_is_in_the_code() -> None:
    found = (texts(ast.parse(path.read_text())) for path in [*SOURCES, *PLUGINS])
    in_code = set(environment.threads(2, {})).union(*found)
    assert {*ROWS} - in_code == set()


def test_a_flag_has_a_variable_named_as_torchrun_names_it() -> None:
    assert flag_variable("nproc_per_node") == "PET_NPROC_PER_NODE"


def test_no_variable_is_listed_twice_or_without_its_meaning() -> None:
    assert [name for name, times in Counter(ROWS).items() if times > 1] == []
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))


def test_workers_inherit_everything_but_passwords() -> None:
    kept = {
        "PATH": "/bin",
        "MY_PASSWORD": "the script's",
        "PET_RDZV_ENDPOINT": "redis://host:1",
        "PET_RDZV_CONF": "password_file=/f",
    }
    assert inheritable({**kept, "ELASTIC_REDIS_PASSWORD": "s3cret", "ELASTIC_EXEC": "4711"}) == kept
    assert inheritable({"PET_RDZV_ENDPOINT": "redis://:s3 cret@h", "PET_RDZV_CONF": "a=1,password=s3cret"}) == {}
