"""Shows what programs show on a terminal: bars of tqdm's and rich's, colours, and prints between them."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.progress import track
from tqdm import tqdm

STEADY = "{l_bar}{bar}| {n_fmt}/{total_fmt}"  # no times
for step in tqdm(range(3), desc=f"rank {os.environ['RANK']}", mininterval=0, bar_format=STEADY):
    if step == 1:
        tqdm.write("in between")
print("stdout", sys.stdout.isatty(), os.get_terminal_size(1) if sys.stdout.isatty() else "")
print("stderr", sys.stderr.isatty(), os.get_terminal_size(2) if sys.stderr.isatty() else "", file=sys.stderr)
for console in (Console(), Console(stderr=True)):
    console.print("[bold red]coloured[/] text, as wide as the window: " + "x" * 200)
    for _ in track(range(3), description="rich", console=console, auto_refresh=False):
        pass
