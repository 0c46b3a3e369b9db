"""Draws README's picture of a terminal out of a real run: two workers train, one is killed, the job goes on.

    PYTHONPATH=tests/harness python docs/render_terminal.py

The picture has every line that was printed, but for most of the epochs. ``tests/test_readme.py`` compares it with a
run of its own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from rig import descendants, variable
from terminal import Terminal

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "first_run.svg"
COLUMNS = 100
TYPED = "elastic run --standalone --nproc_per_node=2 examples/digits/train.py --epochs={}"
EPOCH = re.compile(r"epoch (\d+)/")
COLOURS = re.compile(r"\x1b\[[\d;]*m")
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""rich's picture loads a font from the web; this one takes the reader's."""


def record(epochs: int, killed_after: int) -> list[str]:
    """Return the lines of a terminal on which one of two workers is killed after an epoch, with their colours."""
    typed = TYPED.format(epochs)
    command = [sys.executable, "-m", "elastic_core", *typed.split()[1:]]
    environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    with Terminal(command, ROOT, environment, (40, COLUMNS)) as terminal:
        terminal.wait_for(rf"epoch {killed_after}/.*\n")
        before = len(terminal.text)
        [worker] = [pid for pid in descendants(terminal.process.pid) if variable(pid, "RANK") == "1"]
        os.kill(worker, signal.SIGKILL)
        if terminal.exit_code() != 0:
            raise SystemExit(terminal.text)
    lines = [f"$ {typed}", *terminal.text[:before].splitlines()]
    return [*lines, f"$ kill -9 {worker}    # in another terminal", *terminal.text[before:].splitlines()]


def plain(line: str) -> str:
    """Return a line without its colours."""
    return COLOURS.sub("", line)


def shortened(lines: list[str]) -> list[str]:
    """Return the lines, with dots for epochs that follow an epoch and precede another one."""
    shown: list[str] = []
    for number, line in enumerate(lines):
        around = [EPOCH.match(plain(other)) for other in lines[max(0, number - 1) : number + 2]]
        if not all(around):
            shown.append(line)
        elif shown[-1] != "...":
            shown.append("...")
    return shown


def draw(lines: list[str]) -> str:
    """Return the picture; its description is the text, for readers who do not see it."""
    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for line in lines:
        style = "bold" if line.startswith("$") else ""
        console.print(Text.from_ansi(line, style=style), soft_wrap=False, overflow="fold")
    form = FONTS.sub("", CONSOLE_SVG_FORMAT).replace(
        "Fira Code, monospace", "Menlo, Consolas, DejaVu Sans Mono, monospace"
    )
    form = form.replace("<style>", f"<desc>{escape(chr(10).join(map(plain, lines)))}</desc>\n    <style>", 1)
    svg: str = console.export_svg(title="elastic run", code_format=form, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(shortened(record(epochs=160, killed_after=120))), encoding="utf-8")
    print(PICTURE)
