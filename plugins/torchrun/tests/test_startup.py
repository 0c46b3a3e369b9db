from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_torchrun.startup import LAUNCHER, Finder, is_torchrun

SCRIPT = "#!/env/bin/python\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"


@pytest.mark.parametrize(
    ("line", "argv", "expected"),
    [
        ("python -m torch.distributed.run a", ["-m", "a"], True),
        ("python -u -X dev -m torch.distributed.run --tee 3 a", ["-m", "--tee", "3", "a"], True),
        ("python -um torch.distributed.run", ["-m"], True),
        ("python -mtorch.distributed.run a", ["-m", "a"], True),
        ("python -m torch.distributed.launch a", ["-m", "a"], False),
        ("python -m accelerate -m torch.distributed.run", ["-m", "-m", "torch.distributed.run"], False),
        ("python train.py -m torch.distributed.run", ["train.py", "-m", "torch.distributed.run"], False),
        ("python -c pass torchrun", ["-c", "torchrun"], False),
        ("python", [""], False),
        ("python", [], False),
    ],
)
def test_an_interpreter_knows_whether_it_is_torchrun(line: str, argv: list[str], expected: bool) -> None:
    assert is_torchrun(argv, line.split()) is expected


def test_the_script_is_known_by_what_it_does(tmp_path: Path) -> None:
    for name, text, expected in (("torchrun", SCRIPT, True), ("launch", SCRIPT, False), ("torchrun", "pass", False)):
        (tmp_path / name).write_text(text)
        path = str(tmp_path / name)
        assert is_torchrun([path, "train.py"], ["python", path, "train.py"]) is expected
    missing = str(tmp_path / "gone" / "torchrun")
    assert not is_torchrun([missing], ["python", missing])


def test_an_interpreter_outside_elastic_exec_is_left_alone() -> None:
    shows = "import sys; print([name for name in sys.modules if name.startswith('elastic')])"
    assert subprocess.check_output([sys.executable, "-c", shows], text=True) == "[]\n"


@pytest.mark.parametrize("options", [[], ["-E"], ["-s"]], ids=["plain", "-E", "-s"])
def test_every_interpreter_below_elastic_exec_is_prepared(options: list[str]) -> None:
    shows = "import sys; print([type(f).__module__ for f in sys.meta_path if type(f).__name__ == 'Finder'])"
    command = [sys.executable, *options, "-c", shows]
    said = subprocess.check_output([sys.executable, "-m", "elastic_core", "exec", *command], text=True)
    assert said == "['elastic_torchrun.startup']\n", "once, and whatever PYTHONPATH says"


def test_torchrun_runs_where_its_folder_was_deleted(tmp_path: Path) -> None:
    command = f'rmdir "$PWD" && exec {sys.executable} -m elastic_torchrun --no_python true'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_finder_of_an_older_kind_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = importlib.import_module("torch.distributed").__path__
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    assert Finder().find_spec(LAUNCHER, folder).name == LAUNCHER


@pytest.mark.parametrize("launcher", ["torchelastic.distributed.launch", "bagua.distributed.run"])
@pytest.mark.parametrize("options", [["-m"], ["-u", "-X", "dev", "-m"], ["-um"]], ids=" ".join)
def test_a_launcher_that_is_not_installed_is_answered_with_the_line_to_type(launcher: str, options: list[str]) -> None:
    words = [sys.executable, *options, launcher, "--nnodes=1:4", "train.py", "two words"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == (
        f"elastic: error: {launcher.partition('.')[0]} is not installed, and is not needed. Type:\n\n"
        "elastic run --nnodes=1:4 train.py 'two words'\n"
    )


@pytest.mark.parametrize("launcher", ["torchelastic.distributed.launch", "bagua.distributed.run"])
def test_a_launcher_that_is_installed_runs(tmp_path: Path, launcher: str) -> None:
    file = tmp_path.joinpath(*launcher.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text("import sys; print('launched', *sys.argv[1:])")
    words = [sys.executable, "-m", launcher, "train.py"]
    assert subprocess.check_output(words, cwd=tmp_path, text=True) == "launched train.py\n"


def test_a_program_that_only_looks_for_such_a_package_is_left_alone() -> None:
    looks = "import importlib.util as util, sys; print(util.find_spec('bagua'), *sys.argv[1:])"
    said = subprocess.check_output([sys.executable, "-c", looks, "-m", "bagua.distributed.run"], text=True)
    assert said == "None -m bagua.distributed.run\n"
