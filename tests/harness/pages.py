"""Readers of the docs: each follows a page to the letter, and compares the output.

A file is a block below a line that is only its path. A session is a block of ``console``: commands behind ``$``, each
with what it prints, where ``...`` stands for anything; without output it need only succeed.
"""

from __future__ import annotations

import doctest
import os
import re
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rig import FIRST_FAILURE_ENDS, Rig

BLOCK = re.compile(r"(?:^`(?P<path>[\w./-]+)`\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
PATIENCE = 300.0
"""Seconds that a reader waits for a command: one runs a hundred tests, which write to disk thousands of times."""
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class File:
    """A file that the reader saves under this name."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the reader types, and its output."""

    command: str
    output: str


def steps(page: str) -> list[File | Command]:
    """Return what a reader of the page does, in order."""
    found: list[File | Command] = []
    for block in BLOCK.finditer(page):
        if block["path"]:
            found.append(File(block["path"], block["text"]))
        elif block["language"] == "console":
            found += [Command(typed["command"], typed["output"]) for typed in COMMAND.finditer(block["text"])]
    return found


class Reader:
    """A reader with an empty folder, an environment of their own, and no package index.

    Args:
        rig: Where what they type is started.
        folder: Where their folder is made.
        env: Variables that they have set.
    """

    def __init__(self, rig: Rig, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self._rig = rig
        environment = make_environment(folder / "environment")
        self._env = {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say yes
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **dict.fromkeys(FIRST_FAILURE_ENDS, ""),  # a reader has set none of it
            **(env or {}),
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
        """Return what the command prints; it must succeed."""
        shell = self._rig.start(["bash", "-c", f"cd {self.folder}\n{command}"], env=self._env)
        assert shell.exit_code(PATIENCE) == 0, f"$ {command}\n{shell.output}"
        return f"{shell.output}\n" if shell.lines else ""


def make_environment(folder: Path) -> Path:
    """Make a virtual environment that has all that this one has, for nothing can be downloaded into it."""
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
