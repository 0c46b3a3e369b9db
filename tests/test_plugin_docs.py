"""The pages for authors of plugins: what they show works as it stands, and nothing that there is, is left out.

``docs/writing_a_plugin.md`` is followed to the letter, from its first line to its last, in an empty folder and an
environment of its own. A file is a block below a line that is only its path. A session is a block of ``console``:
commands behind ``$``, each with what it prints, where ``...`` stands for anything; without output it need only succeed.
"""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import runpy
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from stage import Stage

import elastic_core
from elastic_core.plugins import HOOKS

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL = DOCS / "writing_a_plugin.md"
BLOCK = re.compile(r"(?:^`(?P<path>[\w./-]+)`\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class File:
    """What the reader saves under this name."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What the reader types, and what then appears."""

    command: str
    output: str


def steps(page: str) -> list[File | Command]:
    """What a reader of the page does, in order."""
    found: list[File | Command] = []
    for block in BLOCK.finditer(page):
        if block["path"]:
            found.append(File(block["path"], block["text"]))
        elif block["language"] == "console":
            found += [Command(typed["command"], typed["output"]) for typed in COMMAND.finditer(block["text"])]
    return found


class Reader:
    """Somebody with an empty folder, an environment of their own, and no package index."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self._stage = stage
        environment = make_environment(folder / "environment")
        self._env = {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say yes
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def follow(self, page: str) -> None:
        """Do what the page says, and see what it shows."""
        for step in steps(page):
            match step:
                case File(path, text):
                    (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (self.folder / path).write_text(text, encoding="utf-8")
                case Command(command, shown):
                    printed = self.type(command)
                    assert not shown or doctest.OutputChecker().check_output(shown, printed, LENIENT), (
                        f"$ {command}\nprints\n{printed}\nand not, as the page says,\n{shown}"
                    )

    def type(self, command: str) -> str:
        """What the command prints; it must succeed."""
        shell = self._stage.start(["bash", "-c", f"cd {self.folder}\n{command}"], env=self._env)
        assert shell.exit_code() == 0, f"$ {command}\n{shell.output}"
        return f"{shell.output}\n" if shell.lines else ""


def make_environment(folder: Path) -> Path:
    """A virtual environment that has all that this one has, for nothing can be downloaded into it."""
    venv.create(folder, symlinks=True)
    python, (packages,) = folder / "bin" / "python", folder.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name in ("elastic", "pip", "pytest"):
        script = folder / "bin" / name
        script.write_text(
            f"#!{python}\n"
            "import sys\n"
            "from importlib.metadata import entry_points\n"
            "if __name__ == '__main__':\n"  # processes that it spawns import it, too
            f"    (script,) = entry_points(group='console_scripts', name={name!r})\n"
            "    sys.exit(script.load()())\n"
        )
        script.chmod(0o755)
    return folder


@pytest.fixture
def reader(stage: Stage, tmp_path: Path) -> Reader:
    return Reader(stage, tmp_path)


def test_who_follows_the_tutorial_sees_what_it_shows_and_has_all_three_plugins(reader: Reader) -> None:
    reader.follow(TUTORIAL.read_text(encoding="utf-8"))
    listed = [
        row for row in json.loads(reader.type("elastic plugins --json")) if row["distribution"] == "elastic-board"
    ]
    facts = {"distribution": "elastic-board", "version": "0.1.0", "error": None}
    assert listed == [
        {
            "name": "board",
            "group": "elastic.rendezvous",
            "hooks": ["elastic_make_rendezvous", "elastic_rendezvous_options"],
            **facts,
        },
        {"name": "import-errors", "group": "elastic.plugins", "hooks": ["elastic_judge_failure"], **facts},
        {"name": "event-lines", "group": "elastic.autoload", "hooks": ["elastic_observe", "elastic_run_ends"], **facts},
    ]


def test_a_page_that_shows_what_does_not_happen_is_noticed(reader: Reader) -> None:
    page = "`greeting.txt`\n\n```text\nhello\n```\n\n```console\n$ cat greeting.txt\n{}\n```\n"
    reader.follow(page.format("hel..."))
    with pytest.raises(AssertionError, match=r"prints\s+hello\s+and not"):
        reader.follow(page.format("good-bye"))


def test_the_tutorial_leaves_nothing_but_the_environment_to_the_reader() -> None:
    blocks = list(BLOCK.finditer(TUTORIAL.read_text(encoding="utf-8")))
    untested = [block["text"] for block in blocks if not block["path"] and block["language"] != "console"]
    assert len(untested) == 1
    assert "venv" in untested[0]


def test_the_tutorial_says_of_every_hook_where_it_runs_and_what_its_exceptions_do() -> None:
    rows = [
        line.split("|") for line in TUTORIAL.read_text(encoding="utf-8").splitlines() if line.startswith("| `elastic_")
    ]
    assert sorted(hook for row in rows for hook in re.findall(r"`(elastic_\w+)`", row[1])) == sorted(HOOKS)
    assert {len(row) for row in rows} == {6}


def published() -> set[str]:
    """The names of all events that core's code makes."""
    names: set[str] = set()
    for path in Path(elastic_core.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name("Event") | ast.Attribute(attr="_say"), args=[ast.Constant(str(name)), _, *_]
                ):
                    names.add(name)
                case ast.Call(func=ast.Name("failure_events"), args=[ast.Constant(str(name)), *_]):
                    names |= {name, f"{name}_traceback"}
    return names


def test_the_tutorial_names_every_event_that_an_observer_can_hear_of() -> None:
    page = TUTORIAL.read_text(encoding="utf-8")
    table = page.partition("| event | fields | when |\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(published())


def test_the_page_of_hooks_is_what_the_code_says() -> None:
    rendered: str = runpy.run_path(str(DOCS / "render_hooks.py"))["page"]()
    page = (DOCS / "plugin_hooks.md").read_text(encoding="utf-8")
    assert page == rendered, "run: python docs/render_hooks.py"
    assert re.findall(r"^### `(\w+)`$", page, re.MULTILINE) == list(HOOKS)
