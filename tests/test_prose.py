"""The rules of prose that a tool can hold, in docstrings, comments and pages: one term for one thing, plain subjects.

Form and spelling of docstrings are ruff's and codespell's (``pyproject.toml``).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "elastic_core"
PLUGINS = sorted((ROOT / "plugins").glob("*/src/*/__init__.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))

TERMS = {
    "chair": "leader",
    "seat": "slot",
    "scene": "leader view",
    "sighting": "node view",
    "vault": "fd store",
    "pulse": "heartbeat",
    "template": "fork server",
    "nursery": "fork server",
    "complaint": "reachability",
}
"""Words that the repository does not use, and the terms of ``docs/reference/glossary.md`` that stand for them."""
OLD = re.compile(rf"\b({'|'.join(TERMS)})s?\b|\bnode's mind\b", re.IGNORECASE)
IDIOM = re.compile(
    r"\b(?i:nobody|somebody|anybody|everybody|whoever|whomever)\b|(?:^|\. )The same,|\b(?:Return|Yield) the same\b"
)
"""A sentence names its subject: a node, a waiter, a process, a user."""
CODE = re.compile(r"``[^`]+``|`[^`\n]+`")

PLAIN = [
    CORE,
    *(path.parent for path in PLUGINS),
    ROOT / "docs",
]
"""The trees without idioms."""
SIMULATOR = ROOT / "simulator"
READ = [ROOT / "README.md", *PAGES, *sorted((ROOT / "plugins").glob("*/README.md"))]
INSIDE = {"agent", "architecture", "decisions", "protocol", "simulator", "warm_start"}
"""Pages for people who work on Elastic."""
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *[-*] |\||#)|(?<= )\| ")
SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*(\[])|(?<=\.\))\s+")
MOST_WORDS = 60
"""In a sentence; most have fewer than 30."""
GERUNDS = {
    "elastic_core.agent.probing": "what Kubernetes calls it; those of elastic-warmstart are named by single probes",
}
"""Modules whose names end in -ing although they are no nouns of the field, and why."""
NOUNS = {"multiprocessing", "recovery_timing"}
"""Nouns of the field that end so."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page, or a module's comments and docstrings, with numbers; code in backticks is left out."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        blocks = list(enumerate(source.splitlines(), 1))
    else:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        blocks = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Expr(ast.Constant(str(text))):
                    blocks.append((node.lineno, text))
    for first, text in blocks:
        for number, line in enumerate(text.splitlines(), first):
            yield number, CODE.sub("", line).strip()


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a module, each with its place, without docstrings; code in backticks is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield f"{named(path)}:{node.lineno}: {CODE.sub('', node.value)}"


def files_of(path: Path) -> list[Path]:
    return PAGES if path.name == "docs" else [path] if path.is_file() else sorted(path.rglob("*.py"))


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line}" for path in paths for number, line in prose_of(path) if pattern.search(line)
    ]


@pytest.mark.parametrize("tree", [CORE, *(path.parent for path in PLUGINS), ROOT / "docs"], ids=named)
def test_terms_are_those_of_the_glossary(tree: Path) -> None:
    assert found(OLD, files_of(tree)) == [], TERMS


@pytest.mark.parametrize("tree", [*PLAIN, SIMULATOR], ids=named)
def test_a_sentence_names_its_subject(tree: Path) -> None:
    assert found(IDIOM, files_of(tree)) == []


@pytest.mark.parametrize("tree", [tree for tree in PLAIN if tree.name != "docs"], ids=named)
def test_a_text_for_users_names_its_subject(tree: Path) -> None:
    assert [text for path in files_of(tree) for text in texts_of(path) if IDIOM.search(text)] == []


def long_sentences(page: str) -> list[str]:
    """The sentences of a page, outside of its code, that are too long to be read once."""
    paragraphs = PARAGRAPH.split(BLOCK.sub("", page))
    sentences = [sentence for paragraph in paragraphs for sentence in SENTENCE_ENDS.split(paragraph)]
    return [" ".join(sentence.split()) for sentence in sentences if len(sentence.split()) > MOST_WORDS]


@pytest.mark.parametrize("page", [page for page in READ if page.stem not in INSIDE], ids=named)
def test_a_sentence_for_users_is_short(page: Path) -> None:
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_a_long_sentence_is_found_where_it_is_not_code() -> None:
    words = " ".join(["Word"] * (MOST_WORDS + 1))
    assert long_sentences(f"Short. {words}.\n\n```\n{words}\n```\n\n- {words[:-10]}\n- {words[:-10]}") == [f"{words}."]


def test_modules_are_named_by_nouns() -> None:
    trees = [CORE, *(path.parent for path in PLUGINS)]
    modules = [path.relative_to(tree.parent).with_suffix("") for tree in trees for path in tree.rglob("*.py")]
    gerunds = {".".join(module.parts) for module in modules if module.name.endswith("ing")}
    assert {name for name in gerunds if name.rpartition(".")[2] not in NOUNS} - set(GERUNDS) == set()
    assert set(GERUNDS) <= gerunds, "an exception that is not needed"


@pytest.mark.parametrize(
    ("pattern", "line"), [(OLD, "The chair decides."), (IDIOM, "Whoever comes."), (IDIOM, "The same, twice.")]
)
def test_a_violation_is_found(tmp_path: Path, pattern: re.Pattern[str], line: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""A docstring.\n\n{line} ``chair``\n"""\n\nVALUE = "whoever"  # the chair\n')
    assert [number for number, text in prose_of(module) if pattern.search(text)][:1] == [3 if pattern is IDIOM else 6]
