"""A worker that was forked from a fork server is what a fresh interpreter would be, to the script in it. Without
torch.
"""

from __future__ import annotations

import py_compile
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.parity.conftest import Pair, Parity

SCRIPTS = Path(__file__).parent / "scripts"


# What a script sees --------------------------------------------------------------------------------------------------

KINDS: dict[str, Sequence[object]] = {
    "script": [SCRIPTS / "program.py", "--lr", "0.1", "", "two words"],
    "relative script": ["./parity_package/../program.py"],
    "module": ["-m", "parity_package.module", "--lr", "0.1"],
    "package": ["-m", "parity_package", "--lr", "0.1"],
    "run_path": ["--run_path", SCRIPTS / "program.py", "--lr", "0.1"],
}
"""Every kind of program that can start warm, in a folder where all of them are found."""


@pytest.fixture(scope="module")
def kinds(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """A program of each kind."""
    return {kind: parity.start(*arguments) for kind, arguments in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_sees_the_same(kinds: Mapping[str, Callable[[], Pair]], kind: str, fact: str) -> None:
    kinds[kind]().assert_equal(fact)


STREAMS: dict[str, Sequence[str]] = {
    "console": [],
    "teed": ["--tee=3"],
    "each its own": ["--redirects=1", "--tee=2"],
}


@pytest.fixture(scope="module")
def streaming(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """A program with each kind of stream."""
    return {name: parity.start("program.py", flags=flags) for name, flags in STREAMS.items()}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_lead_to_the_same(streaming: Mapping[str, Callable[[], Pair]], name: str) -> None:
    streaming[name]().assert_equal("text", "descriptors")


VARIABLES: dict[str, Mapping[str, str]] = {
    "encoding": {"PYTHONIOENCODING": "latin-1:replace", "PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1"},
    "development": {"PYTHONUTF8": "1", "LC_ALL": "C", "PYTHONDEVMODE": "1"},
    "optimized": {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONOPTIMIZE": "1"},
    "warnings": {"PYTHONWARNINGS": "error::UserWarning,ignore::DeprecationWarning", "PYTHONNOUSERSITE": "1"},
    "safe path": {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(SCRIPTS), "PYTHONTRACEMALLOC": "2", "TZ": "Asia/Tokyo"},
}
OPTIONS = ["-X", "faulthandler", "-X", "int_max_str_digits=5000", "-W", "error::UserWarning"]
LIMITED = """
import os, resource, signal, sys
os.umask(0o027)
os.nice(3)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 600))
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Becomes Python with the rest of its arguments, less free than it was."""


@pytest.fixture(scope="module")
def surroundings(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """A program in each of the worlds that an agent can be in."""
    return {
        **{name: parity.start("program.py", env=env) for name, env in VARIABLES.items()},
        "options": parity.start("program.py", python=[sys.executable, *OPTIONS]),
        "limits": parity.start("program.py", python=[sys.executable, "-c", LIMITED]),
    }


@pytest.mark.parametrize("name", [*VARIABLES, "options", "limits"])
def test_the_agents_surroundings_have_the_same_effect(
    surroundings: Mapping[str, Callable[[], Pair]], name: str
) -> None:
    surroundings[name]().assert_equal()


# Where a script lies -------------------------------------------------------------------------------------------------


def _copied(folder: Path) -> Path:
    return Path(shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__")))


def _spaces(folder: Path) -> Path:
    return _copied(folder / "a folder é") / "program.py"


def _linked(folder: Path) -> Path:
    (folder / "linked.py").symlink_to(SCRIPTS / "program.py")
    return folder / "linked.py"


def _directory(folder: Path) -> Path:
    copy = _copied(folder / "directory")
    (copy / "program.py").rename(copy / "__main__.py")
    return copy


def _archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        for path in _directory(folder / "unpacked").glob("*.py"):
            archive.write(path, path.name)
    return folder / "archive.zip"


def _compiled(folder: Path) -> Path:
    copy = _copied(folder / "compiled")
    py_compile.compile(str(copy / "program.py"), cfile=str(copy / "program.pyc"), dfile=str(copy / "program.py"))
    return copy / "program.pyc"


PLACES: dict[str, Callable[[Path], Path]] = {
    "spaces": _spaces,
    "link": _linked,
    "directory": _directory,
    "archive": _archive,
    "compiled": _compiled,
}


@pytest.fixture(scope="module")
def places(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """A program in each kind of place."""
    return {name: parity.start(place(parity.folder), "argument") for name, place in PLACES.items()}


@pytest.mark.parametrize("name", PLACES)
def test_a_program_sees_the_same_wherever_it_lies(places: Mapping[str, Callable[[], Pair]], name: str) -> None:
    places[name]().assert_equal()


@pytest.mark.parametrize("module", ["json", "socket"], ids=["preloaded", "imported by the fork server"])
def test_a_script_beside_which_a_loaded_module_lies_starts_fresh_and_has_its_own(
    parity: Parity, tmp_path: Path, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text("WHOSE = 'mine'\n")
    (tmp_path / "train.py").write_text(f"import {module}\nprint({module}.WHOSE)\n")
    pair = parity.run(tmp_path / "train.py", silent=True, fallback=True)
    for job in pair:
        assert job.exit_code == 0, job.output
        assert job.lives[0, 0].stdout == "mine\n"
    said = [line for line in pair.warm.output.splitlines() if line.startswith("[elastic]")]
    assert len([line for line in said if re.search(rf"fresh.*\b{module}\b", line)]) == 1, pair.warm.output


# How it ends ---------------------------------------------------------------------------------------------------------

FAILURES = {
    "exit 3": 3,
    "exit 256 and 3": 3,
    "exit -1": 255,
    "exit beyond int": 255,
    "exit text": 1,
    "exit True": 1,
    "exit list": 1,
    "exit exception": 1,
    "exit in finally": 9,
    "exit while registered": 1,
    "os._exit": 5,
    "exception": 1,
    "chained": 1,
    "recursion": 1,
    "hook": 1,
    "hook that fails": 1,
    "KeyboardInterrupt": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGHUP": -signal.SIGHUP,
    "SIGKILL": -signal.SIGKILL,
    "segmentation fault": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "broken pipe": 1,
    "broken pipe at the end": 120,
}
"""Their names in ``endings.py``, and the exit code of each."""
SUCCESSES = {
    "end": "",
    "exit None": "",
    "exit 0": "",
    "exit False": "",
    "exit 256": "",
    "exit handlers": "registered first",
    "failing exit handler": "OfItsOwn",
    "collected": "collected a global",
    "destructor": "Exception ignored in",
    "thread": "Exception in thread Thread-1",
    "thread exits": "",
    "thread hook": "hook OfItsOwn",
    "unraisable hook": "hook OfItsOwn",
    "thread outlives main": "after the main thread",
    "daemon thread": "",
    "unwritten file": "written while everything ends",
    "unwritten file of a module": "written while a preloaded module goes",
    "own stdout": "still in a buffer",
    "warnings": "UserWarning: once",
    "dump": "most recent call first",
}
"""The same for those that exit with 0, and something that each must have printed."""
AT_ONCE = 8
"""Failures of one job: ten in a row without progress would end it."""


@pytest.fixture(scope="module")
def failures(parity: Parity) -> Sequence[Callable[[], Pair]]:
    """Jobs that go through the failures by restarts."""
    names = list(FAILURES)
    batches = [names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE)]
    flags = ["--redirects=3", f"--max_restarts={AT_ONCE - 1}"]
    return [parity.start("endings.py", "lives", *batch, flags=flags) for batch in batches]


@pytest.fixture(scope="module")
def successes(parity: Parity) -> Pair:
    """All successes, each a rank of one job."""
    flags = ["--redirects=3", f"--nproc_per_node={len(SUCCESSES)}"]
    return parity.run("endings.py", "ranks", *SUCCESSES, flags=flags)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_looks_the_same(failures: Sequence[Callable[[], Pair]], name: str) -> None:
    batch, place = divmod(list(FAILURES).index(name), AT_ONCE)
    fresh, warm = (job.lives[0, place] for job in failures[batch]())
    assert fresh.report["chosen"] == name
    assert fresh.exit_code == FAILURES[name]
    assert warm.ending == fresh.ending
    assert warm.report == fresh.report


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_success_looks_the_same(successes: Pair, name: str) -> None:
    fresh, warm = (job.lives[list(SUCCESSES).index(name), 0] for job in successes)
    assert successes.fresh.exit_code == 0, successes.fresh.output
    assert fresh.report["chosen"] == name
    assert SUCCESSES[name] in fresh.stdout + fresh.stderr
    assert warm.ending == fresh.ending
    assert warm.report == fresh.report


DUMPED = ["exception", "recursion", "segmentation fault", "abort"]


@pytest.fixture(scope="module")
def dumped(parity: Parity) -> Callable[[], Pair]:
    """A job that goes through failures with faulthandler on."""
    flags = ["--redirects=3", f"--max_restarts={len(DUMPED) - 1}"]
    return parity.start("endings.py", "lives", *DUMPED, flags=flags, env={"PYTHONFAULTHANDLER": "1"})


@pytest.mark.parametrize("name", DUMPED)
def test_a_failure_looks_the_same_with_faulthandler(dumped: Callable[[], Pair], name: str) -> None:
    fresh, warm = (job.lives[0, DUMPED.index(name)] for job in dumped())
    assert fresh.exit_code == FAILURES[name]
    assert warm.ending == fresh.ending


PROGRAMS: dict[str, tuple[Sequence[str], str, str]] = {
    "exception": ([], "def main():\n    raise ValueError('no such layer')\nmain()\n", "ValueError: no such layer"),
    "exception while importing": ([], "import broken\n", "NameError"),
    "no such module": ([], "import not_here\n", "ModuleNotFoundError"),
    "syntax": ([], "print('never')\nfor x in\n", "SyntaxError"),
    "indentation": ([], "if True:\nprint('never')\n", "IndentationError"),
    "encoding": ([], "text = '\udcff'\n", "SyntaxError"),
    "exception of a module": (["-m"], "raise ValueError('no such layer')\n", "ValueError: no such layer"),
    "syntax of a module": (["-m"], "for x in\n", "SyntaxError"),
    "exception under run_path": (["--run_path"], "raise ValueError('no such layer')\n", "ValueError: no such layer"),
    "interrupted": ([], "import signal\nsignal.raise_signal(signal.SIGINT)\n", "KeyboardInterrupt"),
}
"""The kind of a program that fails, its text, and what it must print."""


@pytest.fixture(scope="module")
def programs(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """Each of them, in a folder of its own beside a module that cannot be imported."""
    started = {}
    for name, (kind, text, _) in PROGRAMS.items():
        folder = parity.folder / name
        folder.mkdir()
        (folder / "failing.py").write_bytes(text.encode(errors="surrogateescape"))
        (folder / "broken.py").write_text("def run():\n    return undefined\nrun()\n")
        target = "failing" if "-m" in kind else folder / "failing.py"
        started[name] = parity.start(*kind, target, env={"PYTHONPATH": str(folder)}, silent=True)
    return {**started, "no such module to run": parity.start("-m", "parity_package.missing", silent=True)}


@pytest.mark.parametrize("name", [*PROGRAMS, "no such module to run"])
def test_a_program_that_fails_by_itself_says_the_same(programs: Mapping[str, Callable[[], Pair]], name: str) -> None:
    fresh, warm = (job.lives[0, 0] for job in programs[name]())
    assert (PROGRAMS[name][2] if name in PROGRAMS else "No module named parity_package.missing") in fresh.stderr
    assert warm.ending == fresh.ending


# What it starts, draws and survives ----------------------------------------------------------------------------------


METHODS = ["fork", "spawn", "forkserver"]
STARTING: dict[str, Sequence[object]] = {
    "script": [SCRIPTS / "multi.py"],
    "module": ["-m", "multi"],
    "run_path": ["--run_path", SCRIPTS / "multi.py"],
}
"""The ways to run a script that starts processes."""


@pytest.fixture(scope="module", params=STARTING)
def started(request: pytest.FixtureRequest, parity: Parity) -> Pair:
    """A script that starts processes in every way."""
    return parity.run(*STARTING[request.param], *METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_works_the_same(started: Pair, method: str) -> None:
    report: Mapping[str, Any] = started.fresh.report()[method]
    assert (report["ended with"], report["counted"], report["memory"]) == (0, 1, False)
    assert report["mapped"] == "[Point(x=0), Point(x=2), Point(x=4), Point(x=6)]"
    started.assert_equal(method)


def test_a_script_with_processes_of_its_own_says_the_same(started: Pair) -> None:
    assert (started.fresh.exit_code, started.fresh.lives[0, 0].stderr) == (0, "")
    started.assert_equal()


def test_no_rank_and_no_life_draws_the_numbers_of_another(parity: Parity) -> None:
    """Neither ranks nor lives: all of them are copies of one fork server."""
    pairs = [
        parity.run("draws.py", "0", flags=["--nproc_per_node=3"]),
        parity.run("draws.py", "2", flags=["--max_restarts=2"]),
    ]
    for job in (job for pair in pairs for job in pair):
        drawn = [life.report["unseeded"] for life in job.lives.values()]
        assert len(drawn) == 3
        for name in drawn[0]:
            assert len({str(draw[name]) for draw in drawn}) == 3, f"{name} of {job.start.value}: {drawn}"
    for pair in pairs:
        pair.assert_equal("seeded")


def test_a_worker_that_was_killed_lives_again(parity: Parity) -> None:
    pair = parity.run("reborn.py", flags=["--max_restarts=1"])
    for job in pair:
        assert job.exit_code == 0, job.output
        assert [life.exit_code for life in job.lives.values()] == [-signal.SIGKILL, 0]
        assert [life.report["life"] for life in job.lives.values()] == [0, 1]
    pair.assert_equal()
