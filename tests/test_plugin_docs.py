"""The pages for authors of plugins: what they show works as it stands, and nothing that there is, is left out.

The pages of ``TUTORIAL`` in ``docs/authors/`` are followed to the letter, in this order and each from its first line to
its last, in one empty folder and an environment of its own (``tests/harness/pages.py``).
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from pages import BLOCK, Reader
from rig import Rig

from elastic_core.plugins.manager import HOOKS

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL = [DOCS / "authors" / f"{name}.md" for name in ("writing_a_plugin", "backend", "conformance_kit")]


@pytest.fixture
def reader(rig: Rig, tmp_path: Path) -> Reader:
    return Reader(rig, tmp_path)


@pytest.mark.timeout(600)
def test_the_commands_of_the_tutorial_print_what_it_shows_and_install_all_three_plugins(reader: Reader) -> None:
    for page in TUTORIAL:
        reader.follow(page.read_text(encoding="utf-8"))
    listed = [
        row for row in json.loads(reader.type("elastic plugins --json")) if row["distribution"] == "elastic-board"
    ]
    facts = {"distribution": "elastic-board", "version": "0.1.0", "summary": "", "error": None}
    assert listed == [
        {
            "name": "board",
            "group": "elastic.rendezvous",
            "hooks": ["elastic_make_rendezvous", "elastic_rendezvous_options"],
            **facts,
        },
        {"name": "script-errors", "group": "elastic.plugins", "hooks": ["elastic_judge_failure"], **facts},
        {"name": "event-lines", "group": "elastic.autoload", "hooks": ["elastic_observe", "elastic_run_ends"], **facts},
    ]


def test_a_page_that_shows_what_does_not_happen_is_noticed(reader: Reader) -> None:
    page = "`greeting.txt`\n\n```text\nhello\n```\n\n```console\n$ cat greeting.txt\n{}\n```\n"
    reader.follow(page.format("hel..."))
    with pytest.raises(AssertionError, match=r"prints\s+hello\s+and not"):
        reader.follow(page.format("good-bye"))


def test_the_tutorial_leaves_nothing_but_the_environment_to_the_reader() -> None:
    blocks = [block for page in TUTORIAL for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    untested = [block["text"] for block in blocks if not block["path"] and block["language"] != "console"]
    assert len(untested) == 1
    assert "venv" in untested[0]


def test_the_tutorial_says_of_every_hook_where_it_runs_and_what_its_exceptions_do() -> None:
    lines = TUTORIAL[0].read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `elastic_")]
    assert sorted(hook for row in rows for hook in re.findall(r"`(elastic_\w+)`", row[1])) == sorted(HOOKS)
    assert {len(row) for row in rows} == {6}


def test_the_page_of_hooks_is_what_the_code_says() -> None:
    rendered: str = runpy.run_path(str(DOCS / "render_hooks.py"))["page"]()
    page = (DOCS / "reference" / "plugin_hooks.md").read_text(encoding="utf-8")
    assert page == rendered, "run: python docs/render_hooks.py"
    assert re.findall(r"^### `(\w+)`$", page, re.MULTILINE) == list(HOOKS)


def test_the_page_of_public_modules_and_the_stubs_of_packages_are_up_to_date() -> None:
    render = runpy.run_path(str(DOCS / "render_public.py"))
    made = {render["PAGE"]: render["page"](), **dict(render["stubs"]())}
    stale = [str(path) for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/render_public.py"
