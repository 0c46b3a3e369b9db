from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_warmstart.checks import DEVICE, command, find_shadowed, hideable, search_path, tasks
from elastic_warmstart.child import fork


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``started(orig_argv, argv)``: as if the interpreter had been started so, before it turns to the program."""

    def started(orig_argv: list[str], argv: list[str]) -> None:
        monkeypatch.setattr(sys, "orig_argv", orig_argv)
        monkeypatch.setattr(sys, "argv", argv)

    return started


@pytest.mark.parametrize(
    ("orig_argv", "argv", "expected"),
    [
        (["python", "-u", "train.py"], ["train.py"], ("python", "-u", "train.py")),
        (["python", "-u", "train.py", "a", "b"], ["train.py", "a", "b"], ("python", "-u", "train.py")),
        (["python", "-u", "-m", "pkg", "a"], ["-m", "a"], ("python", "-u", "-m", "pkg")),
        (["python", "-c", "pass", "a"], ["-c", "a"], ("python", "-c", "pass")),
    ],
)
def test_a_command_ends_where_the_programs_arguments_begin(
    started: Callable[..., None], orig_argv: list[str], argv: list[str], expected: tuple[str, ...]
) -> None:
    started(orig_argv, argv)
    assert command() == expected


@pytest.mark.parametrize("kind", ["script", "link", "folder", "archive", "module", "code"])
def test_where_the_program_looks_first_is_known_before_the_interpreter_says_so(
    started: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Compared with what an interpreter makes of it."""
    source = "import sys; print(sys.path[0])"
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "__main__.py").write_text(source)
    (tmp_path / "real" / "script.py").write_text(source)
    (tmp_path / "link.py").symlink_to("real/script.py")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.writestr("__main__.py", source)
    (tmp_path / "module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    program = {
        "script": ["real/script.py"],
        "link": ["link.py"],
        "folder": ["real"],
        "archive": ["program.zip"],
        "module": ["-m", "module"],
        "code": ["-c", source],
    }[kind]
    said = subprocess.run([sys.executable, *program], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    started([sys.executable, *program], program[:1])
    found = search_path()
    assert found is not None
    assert os.path.abspath(said) == found


@pytest.mark.parametrize(
    ("files", "hidden"),
    [
        ({"json.py": ""}, "json.py"),
        ({"json/__init__.py": ""}, "json/__init__.py"),
        ({"json/data.txt": ""}, None),  # a folder that is no package comes last
        ({"json.txt": ""}, None),
        ({"json_.py": ""}, None),
        ({"data.json": ""}, None),
        ({}, None),
    ],
)
def test_a_file_of_the_same_name_takes_the_place_of_a_module(
    tmp_path: Path, files: dict[str, str], hidden: str | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    expected = () if hidden is None else (("json", str(tmp_path / hidden)),)
    assert find_shadowed(str(tmp_path), frozenset({"json", "subprocess"})) == expected


def test_a_module_that_was_imported_from_there_is_not_hidden_by_itself() -> None:
    assert find_shadowed(os.path.dirname(subprocess.__file__), frozenset({"json", "subprocess"})) == ()


def test_an_archive_can_hide_a_module_too(tmp_path: Path) -> None:
    path = tmp_path / "program.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("json.py", "")
    [(name, where)] = find_shadowed(str(path), frozenset({"json", "subprocess"}))
    assert (name, Path(where).name) == ("json", "json.py")


@pytest.mark.parametrize("directory", [None, "/no/such/place"])
def test_a_place_that_does_not_exist_hides_nothing(directory: str | None) -> None:
    assert find_shadowed(directory, frozenset({"json"})) == ()


def test_only_modules_that_are_files_and_not_there_from_the_start_can_be_hidden() -> None:
    found = hideable(["os"])
    assert {"subprocess", "zipfile"} <= found
    assert not {"os", "sys", "zipimport", "__main__"} & found
    assert not any("." in name for name in found)


def test_threads_are_counted_by_their_names() -> None:
    before = tasks()
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert len(tasks()) == len(before) + 1
    finally:
        end.set()
        thread.join()


def test_a_fork_has_one_thread_with_the_name_that_python_gives_it() -> None:
    reading, writing = os.pipe()
    if (pid := fork()) == 0:
        os.write(writing, ",".join(tasks()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        assert answer.read() == threading.main_thread().name
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    ("path", "is_device"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-uvm", True),
        ("/dev/kfd", True),
        ("/dev/dri/renderD128", True),
        ("/dev/null", False),
        ("/dev/dri/card0", False),
        ("/home/dev/nvidia0", False),
    ],
)
def test_device_files_of_accelerators_are_recognised(path: str, is_device: bool) -> None:
    assert bool(DEVICE.match(path)) is is_device
