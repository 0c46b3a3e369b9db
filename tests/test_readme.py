"""README's picture is of this Elastic, its numbers are measured, and its lines in a script do what it says."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

import pytest
from rig import EXAMPLES, WARM, WORKERS, Rig

from elastic_core.config.run import FLAGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RENDER = runpy.run_path(str(ROOT / "docs" / "render_terminal.py"))
SVG = "{http://www.w3.org/2000/svg}"
TWO = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", WORKERS / "hurt.py", "8"]


def picture() -> ET.Element:
    return ET.parse(RENDER["PICTURE"]).getroot()


def described() -> list[str]:
    """The lines of the run that the picture shows."""
    description = picture().findtext(f"{SVG}desc")
    assert description is not None
    return description.splitlines()


def test_readme_shows_the_picture_whose_description_is_its_text() -> None:
    assert f"]({RENDER['PICTURE'].relative_to(ROOT)})" in README
    rows = [text for text in picture().iter(f"{SVG}text") if "matrix" not in text.get("class", "")]
    shown = ["".join(text.text or "" for text in row) for _, row in groupby(rows, key=lambda text: text.get("y"))]
    assert "".join("".join(described()).split()) in "".join("".join(shown).split())


def meaning(line: str) -> str:
    """A line without what differs from run to run: clock, host, numbers, the job's id, and what is in brackets."""
    line = re.sub(r"^\[elastic\] \S+ \S+: ", "[elastic] ", RENDER["plain"](line).strip())
    line = re.sub(r"'[0-9a-f-]+'", "ID", line).replace(" as " + line.rpartition(" as ")[2], "")
    return re.sub(r"\d+(?:[.,]\d+)*", "0", re.split(r" \(|, but", line)[0])


@pytest.mark.timeout(300)
def test_the_picture_shows_what_elastic_prints_today() -> None:
    today = {meaning(line) for line in RENDER["record"](epochs=12, killed_after=6)}
    shown = [line for line in described() if line != "..."]
    assert len(shown) > 12
    assert [line for line in shown if meaning(line) not in today] == [], "run docs/render_terminal.py"


def test_the_numbers_are_those_that_were_measured() -> None:
    measured = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    named = {
        "a worker is killed, on one node": "a worker is killed: one node, two workers",
        "one of two nodes is killed": "a node is killed, `--nnodes=1:2`; collectives fail",
        "a node joins: how long the others pause": "... and how long the running workers pause",
    }
    for shown, row in named.items():
        [cells] = re.findall(rf"^\| {re.escape(shown)} \| (.*) \| \*\*(.*)\*\* \|$", README, re.MULTILINE)
        torchrun, _, _, warm = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", measured, re.MULTILINE)[0].split(" | ")
        assert cells == tuple(re.sub(r" \([^)]*\)", "", cell) for cell in (torchrun, warm))


def test_the_page_of_performance_has_numbers_that_were_measured() -> None:
    def rows(page: Path) -> list[list[str]]:
        lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
        return [re.sub(r" \([^)]*\)", "", line).strip("| ").split(" | ") for line in lines]

    measured: dict[str, set[str]] = {}
    for title, *cells in rows(ROOT / "benchmarks" / "RESULTS.md"):
        measured.setdefault(title, set()).update(cells)
    shown = rows(ROOT / "docs" / "performance.md")
    assert len(shown) > 20
    assert [row for row in shown if not set(row[1:]) <= measured.get(row[0], set()) | {"in plain copies"}] == []


def test_the_report_is_one_of_those_that_are_tested() -> None:
    [report] = re.findall(r"^```text\n(.*?)```$", README, re.MULTILINE | re.DOTALL)
    assert report in (ROOT / "tests" / "data" / "failure_stories.md").read_text(encoding="utf-8")


def test_every_flag_that_readme_names_exists() -> None:
    commands = re.findall(r"elastic run ([^`\n]*)", README)
    given = {name for command in commands for name in re.findall(r"--(\w+)", command)}
    assert len(given) > 5
    assert given - {"epochs"} <= {flag.name for flag in FLAGS}, "all but the script's own"


def changed(script: str) -> str:
    """The script with the lines that README adds and removes."""
    diff = next(block for block in re.findall(r"^```diff\n(.*?)^```$", README, re.M | re.S) if "restore()" in block)
    lines, place = script.splitlines(), 0
    for sign, line in ((line[:1], line[1:]) for line in diff.replace(" …\n", "").splitlines()):
        if sign == "+":
            lines.insert(place, line)
            place += 1
        else:
            place = lines.index(line, place) + (sign == " ")
            if sign == "-":
                del lines[place]
    return "\n".join(lines)


@pytest.mark.parametrize("added", [False, True])
def test_unchanged_it_survives_and_with_the_lines_it_loses_no_step(rig: Rig, tmp_path: Path, added: bool) -> None:
    """The script counts the steps of its last life: 20 when it began anew, 13 when it went on after the seventh."""
    original = (EXAMPLES / "minimal" / "train.py").read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(changed(original) if added else original)
    agent = rig.run(*TWO, script, "--epochs=2", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert f"trained for {13 if added else 20} steps" in agent.lines, agent.output
