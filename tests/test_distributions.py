"""The distributions as users get them: metadata, licence, long description, wheels and source archives."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
LICENSE = (ROOT / "LICENSE").read_bytes()
RELEASE = "0.1.0"

every_distribution = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


NAMES = {project(folder)["name"] for folder in FOLDERS}


def requirements(folder: Path) -> dict[str, str]:
    """Return the requirements of a distribution, with its extras: the version of each, by its name."""
    table = project(folder)
    found = map(Requirement, [*table["dependencies"], *chain(*table.get("optional-dependencies", {}).values())])
    return {requirement.name: str(requirement.specifier) for requirement in found}


@every_distribution
def test_it_fits_only_its_own_release(folder: Path) -> None:
    """Without a version pip would take the foreign distribution that has the name elastic-core on the public index."""
    assert {version for name, version in requirements(folder).items() if name in NAMES} <= {f"~={RELEASE}"}
    assert folder.name == "core" or "elastic-core" in requirements(folder)


def test_all_have_one_floor_for_torch() -> None:
    assert {requirements(folder)["torch"] for folder in FOLDERS if "torch" in requirements(folder)} == {">=2.5"}


@every_distribution
def test_its_long_description_has_no_link_into_the_repository(folder: Path) -> None:
    """They lead nowhere on an index, which shows the README alone, and gives its headings no anchors."""
    links = re.findall(r"\]\(([^)]*)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https://")] == []


class Built(NamedTuple):
    wheel: Path
    archive: Path


def build(folder: Path, into: Path, *targets: str) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", into, *targets], cwd=folder, check=True)


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    into = tmp_path_factory.mktemp("dist")
    build(request.param, into)
    [wheel], [archive] = into.glob("*.whl"), into.glob("*.tar.gz")
    return Built(wheel, archive)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def metadata(wheel: Path) -> Message:
    [text] = [text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(text)


def test_a_wheel_has_the_licence_and_an_author(built: Built) -> None:
    found = metadata(built.wheel)
    assert (found["License-Expression"], found["License-File"]) == ("Apache-2.0", "LICENSE")
    assert [text for name, text in contents(built.wheel).items() if name.endswith("licenses/LICENSE")] == [LICENSE]
    assert (found["Author"], found["Version"]) == ("The Elastic authors", RELEASE)


def test_a_source_archive_makes_the_same_wheel_and_has_no_tests(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.archive) as opened:
        names = opened.getnames()
        opened.extractall(tmp_path, filter="data")
    [top] = tmp_path.iterdir()
    assert not [name for name in names if "/tests/" in name]
    assert (top / "LICENSE").read_bytes() == LICENSE
    build(top, tmp_path, "-t", "wheel")
    assert contents(tmp_path / built.wheel.name).keys() == contents(built.wheel).keys()
