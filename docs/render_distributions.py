"""Writes the page of all distributions, and the lists of them that other tools read, from ``distributions.toml``.

    python docs/render_distributions.py

A test compares the files with what this makes of the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_core.distributions import distributions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PREFACE = """\
# The distributions

Made by `python docs/render_distributions.py` from
[`distributions.toml`](../../core/src/elastic_core/distributions.toml) and each `pyproject.toml`; change them there.
`elastic-core` has the agent, the rendezvous protocol, the hooks, the command line and the backend `local`. A plugin in
the column `on` is on in every run once it is installed, unless `--no_plugin` names it.

| distribution | what it is | on | flags and commands |
|---|---|---|---|
"""


def page() -> str:
    """Return the page of the distributions, in the order of the table."""
    return PREFACE + "".join(_row(name, brings) for name, brings in distributions().items())


def _row(name: str, brings: Mapping[str, Any]) -> str:
    folder = brings["folder"]
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    typed = [f"--rdzv_backend={each}" for each in brings.get("rendezvous", ())]
    typed += [f"--{each}" for each in brings.get("flags", ())]
    typed += [f"elastic {each}" for each in brings.get("commands", ())]
    shown = ", ".join(f"`{each}`" for each in typed)
    on = ", ".join(f"`{each}`" for each in brings.get("autoload", ()))
    return f"| [{name}](../../{folder}/README.md) | {project['description']} | {on} | {shown} |\n"


def files() -> dict[Path, str]:
    """Return the text of each file that has a list of the distributions."""
    folders = sorted(brings["folder"] for brings in distributions().values())
    harnesses = [f"{folder}/tests/harness" for folder in folders if (ROOT / folder / "tests" / "harness").is_dir()]
    every = [name for name, brings in distributions().items() if brings.get("all", True)]
    paths = sorted([*(f"{folder}/src" for folder in folders), *harnesses])

    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = _replace(settings, r'(    "plugins/\S+",\n)+', "".join(f'    "{path}",\n' for path in paths))
    settings = _replace(settings, r'("plugins/\S+/tests/harness", )+', "".join(f'"{path}", ' for path in harnesses))
    core = (ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8")
    core = _replace(core, r"(?<=^all = \[\n)[^]]*", "".join(f'    "{name}~=0.1.0",\n' for name in every))
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    names = ", ".join(folder.removeprefix("plugins/") for folder in folders)
    tox = _replace(tox, r"(?<=\}, )[\w, ]+(?=, example-plugin, )", names)
    listed = "".join(f"    ./{folder}\n" for folder in folders)
    tox = _replace(tox, r"(    \./plugins/\w+\n)+(?=    \./examples/plugin\n    \./examples/)", listed)
    return {
        ROOT / "docs" / "reference" / "distributions.md": page(),
        ROOT / "pyproject.toml": settings,
        ROOT / "core" / "pyproject.toml": core,
        ROOT / "tox.ini": tox,
    }


def _replace(text: str, pattern: str, new: str) -> str:
    """Return the text with ``new`` in the one place that matches."""
    [found] = re.finditer(pattern, text, re.MULTILINE)
    return text[: found.start()] + new + text[found.end() :]


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
