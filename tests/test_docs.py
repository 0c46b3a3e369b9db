"""The documentation names what exists: rules, tests, files, modules, fields of entries, links."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from simulator.assumptions import ASSUMPTIONS
from simulator.profiles import PROFILES

from elastic_core.protocol import entries
from elastic_core.protocol.roster import NodeRow
from elastic_torchrun.torch_names import MODULES

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "docs" / "internals" / "protocol.md"
SCENARIOS = ROOT / "core" / "tests" / "protocol" / "scenarios"
TREES = ("core", "plugins", "examples", "tests", "benchmarks", "docs")
SOURCES = [path for path in ROOT.glob("*/src") if path.is_dir()] + sorted(ROOT.glob("*/*/src"))
PAGES = sorted([*ROOT.glob("*.md"), *(page for tree in TREES for page in (ROOT / tree).rglob("*.md"))])
BASES = [ROOT, ROOT / "core" / "src", *SOURCES, ROOT / "tests" / "harness"]
"""The roots of paths in pages, besides the folder of the page."""
RULE = re.compile(r"\b[SLIP][1-9][0-9]?\b")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|md|txt|toml|json|jsonl|sh|yaml)|[\w.-]+(?:/[\w.-]+)+/")
NAMED = re.compile(r"([\w./-]+\.py)((?:::\w+)+)")
MODULE = re.compile(r"\belastic_\w+(?:\.\w+)+\b")
TORCHS = {f"elastic_core.{name}" for name in [*MODULES, *" ".join(MODULES[""].values()).split()]}
"""Modules and names that elastic-torchrun adds to core; ``tests/parity/test_torch_names.py`` holds that they exist."""


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def outside_blocks(page: Path) -> str:
    """The page without blocks of code, which show files of the reader's."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


# Rules ---------------------------------------------------------------------------------------------------------------


def defined() -> list[str]:
    return re.findall(rf"^(?:### |\| )({RULE.pattern})(?: \||$)", text(PROTOCOL), flags=re.MULTILINE)


def test_each_rule_is_defined_once() -> None:
    assert len(defined()) == len(set(defined()))


def test_the_rules_that_are_cited_are_those_that_are_defined() -> None:
    cited = {}
    for tree in TREES:
        for path in [*(ROOT / tree).rglob("*.py"), *(ROOT / tree).rglob("*.md")]:
            if not {".venv", "build"} & set(path.parts):
                cited.update(dict.fromkeys(RULE.findall(text(path)), named(path)))
    assert {rule: path for rule, path in cited.items() if rule not in defined()} == {}
    assert set(defined()) - cited.keys() == set()


@pytest.mark.parametrize("rule", [rule for rule in defined() if rule[0] in "SL"])
def test_a_rule_is_one_sentence_with_its_place_and_its_test(rule: str) -> None:
    section = text(PROTOCOL).split(f"\n### {rule}\n")[1].split("\n#")[0]
    sentence, _, rest = section.partition("\n\n")
    assert re.fullmatch(r"[A-Z][^\n]*\.", sentence)
    places, _, shown = rest.partition("\n- Test: ")
    assert places.startswith("- Enforced: ")
    assert PATH.search(places)
    assert NAMED.search(shown.partition("\n")[0])


@pytest.mark.parametrize("rule", [rule for rule in defined() if rule[0] in "IP"])
def test_an_invariant_has_its_place_and_its_test(rule: str) -> None:
    row = next(line for line in text(PROTOCOL).splitlines() if line.startswith(f"| {rule} |"))
    _, _, sentence, place, test, _ = map(str.strip, row.split("|"))
    assert sentence
    assert PATH.search(place)
    assert NAMED.search(test)


def scenarios_of(rule: str) -> list[str]:
    """The names of the scenarios that a rule cites."""
    page = text(PROTOCOL)
    if rule[0] in "SL":
        page, start = page.split(f"\n### {rule}\n")[1].split("\n#")[0], "- "
    else:
        start = f"- {rule} · "
    lines = re.findall(rf"^{start}(?:Played|Not played): (.*)$", page, flags=re.MULTILINE)
    assert len(lines) == 1
    found = re.findall(r"\[(\w+)\]\(\S*/scenarios/(\w+)\.txt\)", lines[0])
    assert all(name == file for name, file in found)
    return [name for name, _ in found]


@pytest.mark.parametrize("rule", defined())
def test_a_rule_has_a_scenario_or_a_reason_why_it_has_none(rule: str) -> None:
    reasons = text(SCENARIOS / "README.md").partition("\n## Rules without a scenario\n")[2]
    assert bool(scenarios_of(rule)) != (f"\n- {rule}: " in reasons)


def test_the_page_of_the_protocol_cites_every_scenario() -> None:
    assert {path.stem for path in SCENARIOS.glob("*.txt")} == set(re.findall(r"/scenarios/(\w+)\.txt", text(PROTOCOL)))


# Entries -------------------------------------------------------------------------------------------------------------


def test_the_page_of_the_protocol_has_every_kind_of_entry_with_its_fields() -> None:
    shown = {
        kind: re.findall(r"`(\w+)`", columns)
        for kind, columns in re.findall(r"^\| `([A-Z_]+)` \| ([^|]*) \|", text(PROTOCOL), flags=re.MULTILINE)
    }
    there = {}
    for name in str(entries.Body).split(" | "):
        body = getattr(entries, name.rpartition(".")[2])
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
        there[kind] = [item.name for item in fields(body)]
    assert shown == there


def test_the_page_of_the_protocol_has_every_field_of_a_row() -> None:
    section = text(PROTOCOL).split("### A roster row\n")[1].split("\n#")[0]
    first = re.findall(r"^\| ([^|]*) \|", section, flags=re.MULTILINE)
    shown = [name for column in first for name in re.findall(r"`(\w+)`", column)]
    assert sorted(shown) == sorted(item.name for item in fields(NodeRow))


# What pages name -----------------------------------------------------------------------------------------------------


@cache
def definitions(path: Path) -> dict[str, ast.AST]:
    """Everything that a file defines, by its dotted name."""
    found: dict[str, ast.AST] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[prefix + node.name] = node
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(text(path)).body, "")
    return found


def resolved(name: str, page: Path) -> Path | None:
    return next((base / name for base in (*BASES, page.parent) if (base / name).exists()), None)


def in_code(page: Path) -> Iterator[str]:
    for code in CODE.findall(outside_blocks(page)):
        if not re.search(r"[<>{}*$…=]|^/|://|~/|[A-Z_]{4,}[./]", code):  # patterns, addresses and files of the reader's
            yield code


@cache
def ours() -> frozenset[str]:
    """The folders with which a path of ours can begin, or begins where it is not written in full."""
    packages = [package for source in SOURCES for package in source.iterdir()]
    inside = [folder for package in packages if package.is_dir() for folder in package.iterdir()]
    return frozenset({*TREES, *(folder.name for folder in (*packages, *inside) if folder.is_dir())})


@every_page
def test_files_that_a_page_names_exist(page: Path) -> None:
    made = set(re.findall(r"^`(\S+)`$", text(page), flags=re.MULTILINE))  # by a reader who follows the page
    found = {name.rstrip("/") for code in in_code(page) for name in PATH.findall(code)} - made
    dead = [name for name in sorted(found) if name.partition("/")[0] in ours() and resolved(name, page) is None]
    assert dead == []


@every_page
def test_functions_and_tests_that_a_page_names_exist(page: Path) -> None:
    missing = []
    for code in in_code(page):
        for name, inside in NAMED.findall(code):
            path, what = resolved(name, page), inside[2:].replace("::", ".")
            if path is None or what not in definitions(path):
                missing.append(name + inside)
    assert missing == []


@every_page
def test_modules_that_a_page_names_exist(page: Path) -> None:
    missing = []
    for dotted in {name for code in in_code(page) for name in MODULE.findall(code)} - TORCHS:
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            stem = "/".join(parts[:length])
            places = [source / f"{stem}{end}" for source in SOURCES for end in (".py", "/__init__.py")]
            if (path := next((place for place in places if place.exists()), None)) is not None:
                if not all(re.search(rf"\b{part}\b", text(path)) for part in parts[length:][:1]):
                    missing.append(dotted)
                break
        else:
            missing.append(dotted)
    assert sorted(missing) == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", outside_blocks(page), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


@every_page
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(outside_blocks(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


# Pages that are made, and what they have to be complete in ------------------------------------------------------------


REFERENCE = runpy.run_path(str(ROOT / "docs" / "render_reference.py"))["PAGES"]


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_that_is_made_is_what_the_code_says(name: str) -> None:
    assert text(ROOT / "docs" / name) == REFERENCE[name](), "run: python docs/render_reference.py"


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text(index))}
    assert set((ROOT / "docs").rglob("*.md")) - linked == {index}


def test_the_profiles_of_the_simulator_that_pages_name_exist() -> None:
    assumptions = text(PROTOCOL).partition("\n## Assumptions\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| [^|]* \| [^|]*\(`(\w+)`\) \|", assumptions, flags=re.MULTILINE)
    rules = text(ROOT / "docs" / "internals" / "simulator.md").partition("\n## Profiles ")[2].partition("\n## ")[0]
    named += re.findall(r"^\| `(\w+)` \|", rules, flags=re.MULTILINE)
    assert len(named) > 20
    assert set(named) - PROFILES.keys() - ASSUMPTIONS.keys() == set()


# Sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "most"), [("README.md", 80), ("docs/internals/architecture.md", 120)])
def test_a_page_that_is_read_first_is_short(page: str, most: int) -> None:
    assert len(text(ROOT / page).splitlines()) <= most


def test_the_table_of_packages_is_the_contract_of_import_linter() -> None:
    contract = text(ROOT / "pyproject.toml").partition("\nlayers = [\n")[2].partition("\n]\n")[0]
    rows = text(ROOT / "docs" / "internals" / "architecture.md").partition("\n## Packages\n")[2]
    shown = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`[^|]*) \|", rows, flags=re.MULTILINE)]
    assert shown == [line.strip(' ",').split(" | ") for line in contract.splitlines()]


def test_the_architecture_has_three_diagrams() -> None:
    assert text(ROOT / "docs" / "internals" / "architecture.md").count("```mermaid") == 3
