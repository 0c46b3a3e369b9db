"""Imports of workers are made ahead where forks can share them, whatever an import does."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from elastic_warmstart.learned_imports import Learned, Learning, Record
from elastic_warmstart.library_modules import find, is_library, own_names

MODULES = {
    "good": "VALUE = 1",
    "package": "",
    "raises": "raise ValueError('not here')",
    "exits": "raise SystemExit(3)",
    "crashes": "import os\nos.kill(os.getpid(), 9)",
    "hangs": "import threading\nthreading.Event().wait()",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait, name='other', daemon=True).start()",
    "opens": "import os\nkept = os.open(__file__, os.O_RDONLY)",
    "listens": "import socket\nkept = socket.socket()",
    "spawns": "import subprocess\nkept = subprocess.Popen(['sleep', '1000'])",
    "reads_rank": "import os\nrank = int(os.environ.get('RANK', -1))",
    "asks_rank": "import os\nfirst = 'RANK' not in os.environ",
    "reads_home": "import os\nhome = os.environ.get('HOME')",
    "sets": "import os\nos.environ.setdefault('SET_BY_IMPORT', 'yes')",
    "uses_program": "import program_part",
    "uses_threads": "import threads",
    "extends": "import os\nos.environ['PATH'] += ':/opt/tool/bin'",
    "removes": "import os\ndel os.environ['HOME']",
    "reads_set": "import os\nhome = os.environ.get('HF_HOME', '~')",
    "sets_same": "import os\nos.environ.setdefault('KMP_INIT', 'no')",
    "moves": "import os\nos.chdir('/')",
    "masks": "import os\nos.umask(0o077)",
    "handles": "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)",
    "translates": "import locale\nlocale.setlocale(locale.LC_ALL, 'C')",
    "locks": "import multiprocessing\nlock = multiprocessing.RLock()",
    "makes_files": "import os, tempfile\nfolder = tempfile.TemporaryDirectory()\nos.close(tempfile.mkstemp()[0])",
    "uses_files": "import tempfile\nwith tempfile.NamedTemporaryFile():\n    pass",
    "polls": "import select\nepoll = select.epoll()",
    "daemonizes": "import subprocess\nsubprocess.run('setsid sleep 1000 & echo $!', shell=True, check=True)",
    "large": "kept = bytearray(b'x') * (64 << 20)",
    "vendored": "",
    "uses_vendored": "import library_copy",
    "library_copy": "",
    "last": "print('said while it is imported')",
}
DRIVER = """
import json, locale, os, select, sys, tempfile
from elastic_core.warden.linux import become_subreaper
from elastic_warmstart import learned_imports, library_modules
become_subreaper()
library, program = sys.argv[1:3]
sys.path[:0] = [library, program]
roots = (*library_modules.library_roots(), os.path.realpath(library))
library_modules.library_roots = learned_imports.library_roots = lambda: roots
learned_imports.UNIT_WITHIN, learned_imports.MEMORY_MAX = 5.0, 32 << 20
locale.setlocale(locale.LC_ALL, "C.UTF-8")
epoll = select.epoll()
class Given:
    def names(self):
        return sys.argv[3:]
    def variables(self):
        return {"HF_HOME": "/data", "KMP_INIT": "no"}
    def paths(self):
        return [program + "/vendor"]
found = learned_imports.Learning(records=[Given()], varying={"RANK"})
learned = found.learn()
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        break
alive = open(f"/proc/self/task/{os.getpid()}/children").read()
print(json.dumps([learned.imported, learned.refused, found.set_by_imports, alive, found.candidates()]))
print(os.listdir(tempfile.gettempdir()), open("/proc/self/oom_score_adj").read(), file=sys.stderr)
"""


def test_only_what_forks_can_share_is_imported(tmp_path: Path) -> None:
    library, program, temporary = tmp_path / "library", tmp_path / "program", tmp_path / "temporary"
    for folder in (library, program, temporary):
        folder.mkdir()
    for name, text in MODULES.items():
        (library / f"{name}.py").write_text(text)
    (program / "program_part.py").write_text("")
    (program / "vendor").mkdir()
    (program / "vendor" / "library_copy.py").write_text("")
    (program / "vendor" / "vendored.py").write_text("raise ValueError('the program has its own')")
    names = [*MODULES, "missing", "program_part", "elastic_core.nothing", "not-a-name", "missing.child"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(library), str(program), *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": "/root", "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    imported, refused, set_by_imports, children, left = json.loads(done.stdout)
    assert imported == ["good", "package", "reads_home", "sets", "sets_same", "uses_files", "last"]
    assert set_by_imports == {"SET_BY_IMPORT": "yes", "KMP_INIT": "no"}
    assert (children, left) == ("", [])
    assert done.stderr.split() == ["[]", Path("/proc/self/oom_score_adj").read_text().strip()]
    assert {name: reason.replace(str(library), "…") for name, reason in refused.items()} == {
        "moves": "it changes the working directory",
        "masks": "it changes the umask",
        "handles": "it changes the handler of a signal",
        "translates": "it changes the locale",
        "locks": "it changes the memory that forks share",
        "makes_files": refused["makes_files"],
        "polls": "it leaves anon_inode:[eventpoll] open",
        "daemonizes": "it leaves a process behind",
        "large": "with it, all that is imported would take more than 32 MiB",
        "crashes": "a process that imported it was killed by SIGKILL",
        "hangs": "its import did not end in time",
        "threads": "the preloaded process has 2 threads, which a fork does not get (MainThread, other)",
        "uses_vendored": "it imports library_copy, of which the program has one of its own",
        "uses_threads": "the preloaded process has 2 threads, which a fork does not get (MainThread, other)",
        "opens": "it leaves …/opens.py open",
        "listens": refused["listens"],
        "spawns": "it leaves a process behind",
        "reads_rank": "it reads RANK, which differs from worker to worker",
        "asks_rank": "it reads RANK, which differs from worker to worker",
        "extends": "it changes PATH, which is set already",
        "removes": "it changes HOME, which is set already",
        "reads_set": "it reads HF_HOME, which the program sets",
        "uses_program": "it imports program_part, which is no installed library's",
    }
    assert refused["listens"].startswith("it leaves socket:")
    assert refused["makes_files"].startswith(f"it leaves {temporary}/")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["python", "-u", "-m", "trainer.run", "--lr=1"], {"trainer"}),
        (["python", "-u", "train.py", "-m"], set()),
        (["python", "-u", "train.py"], set()),
    ],
)
def test_a_program_that_is_a_module_has_its_package_for_itself(command: list[str], names: set[str]) -> None:
    assert own_names(command, []) == names


def test_modules_beside_the_program_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").touch()
    for package in ("models", "data"):
        (tmp_path / package).mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    assert own_names(["python", "train.py"], [str(tmp_path), "/nowhere"]) == {"datasets", "models"}


@pytest.mark.parametrize(
    ("origins", "library"),
    [
        (["/env/site-packages/numpy/__init__.py"], True),
        (["/env/site-packages-mine/numpy/__init__.py"], False),
        (["/home/me/train/part.py"], False),
        (["/env/site-packages/spread", "/home/me/spread"], False),
        ([], False),
    ],
)
def test_a_library_lies_where_libraries_are_installed(origins: list[str], library: bool) -> None:
    assert is_library(origins, ["/env/site-packages"]) is library


def test_learning_ends_where_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(*_: object) -> NoReturn:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr("elastic_warmstart.learned_imports.attempt", attempt)
    record = Record()
    monkeypatch.setattr(record, "names", lambda: ["never_imported"])
    assert Learning(records=[record]).learn() == Learned()
    record.close()


def test_variables_that_workers_have_otherwise_are_known() -> None:
    learning = Learning()
    own = {"HOME": "/root", "OMP_NUM_THREADS": "1"}
    records = [learning.new_record({**own, "RANK": str(rank)}, own) for rank in range(10)]
    assert learning.varying == {"RANK"}
    assert learning.records == records[-8:]
    assert learning.candidates() == []


def test_imports_of_the_newest_worker_are_counted_until_they_are_imported_ahead() -> None:
    class Given(Record):
        def __init__(self, *names: str) -> None:
            self._names = list(names)

        def names(self) -> list[str]:
            return self._names

    learning = Learning(records=[Given("of_an_older_life"), Given("sys", "first", "second"), Given()])
    assert learning.count_unlearned() == 2
    learning.tried.add("first")
    assert learning.count_unlearned() == 1
    learning.left_out = {"first", "sys", "another"}
    assert learning.count_unlearned() == 2
    assert Learning().count_unlearned() == 0


def test_modules_are_found_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    for name in ("outer/__init__", "outer/inner/__init__", "outer/inner/leaf", "spread/leaf", "single"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    there = ["outer", "outer.inner", "outer.inner.leaf", "spread", "spread.leaf", "single"]
    missing = ["outer.nothing", "outer.inner.nothing", "single.nothing", "nowhere", "nowhere.leaf", "", ".", "outer."]
    names = [*there, *missing, "json", "json.tool", "json.nothing"]
    assert [name for name in names if find(name) is not None] == [*there, "json", "json.tool"]
    assert not {*there} & {*sys.modules}


def test_the_current_directory_is_the_programs_where_it_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "elsewhere" / "train.py")])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    learning = Learning()
    record = learning.new_record({}, {})
    record.begin()
    sys.path.insert(0, "")
    importlib.import_module("datasets")
    sys.modules.pop("datasets")
    assert "datasets" in own_names(["python", "train.py"], learning.directories())
