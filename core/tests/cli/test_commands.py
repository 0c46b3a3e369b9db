from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core import __version__
from elastic_core.cli.commands import Elastic, run
from elastic_core.errors import how_to_install
from elastic_core.plugins.entry_points import Catalogue

COMMAND = """
    import click

    @click.command()
    def command():
        print("hello")
"""
BROKEN = "raise RuntimeError('not today')"
Install = Callable[..., None]


def elastic(*line: str) -> int:
    return run(Elastic(), line)


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert elastic("--version") == 0
    assert capsys.readouterr().out == f"elastic {__version__}\n"


def test_a_line_without_a_command_shows_the_help() -> None:
    alone, asked = (subprocess.check_output([sys.executable, "-m", "elastic_core", *line]) for line in ([], ["--help"]))
    assert alone == asked != b""


def completed(*words: str) -> list[str]:
    """Return the completions of bash for the last word of a line, from a process of its own as when Tab is pressed."""
    line = ["elastic", *words]
    instruction = {"_ELASTIC_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(words))}
    asked = subprocess.run(
        [sys.executable, "-m", "elastic_core"],
        env={**os.environ, **instruction},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stderr == ""
    return asked.stdout.splitlines()


def test_a_shell_completes_commands_flags_and_programs() -> None:
    assert completed("pl") == ["plain,plugins"]
    assert completed("--v") == ["plain,--version"]
    assert completed("run", "--nn") == ["plain,--nnodes"]
    assert completed("run", "--rdzv_backend", "c10d", "tr") == ["file,tr"]
    assert completed("nothing", "x") == [""]


def test_to_complete_a_command_imports_none(install: Install) -> None:
    install("dist", {"elastic.commands": {"broken": "broken_command"}}, {"broken_command": BROKEN})
    group = Elastic()
    with group.make_context("elastic", [], resilient_parsing=True) as context:
        assert "broken" in [item.value for item in group.shell_complete(context, "")]


def test_a_plugins_command_is_imported_when_it_is_called(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(
        "dist",
        {"elastic.commands": {"greet": "greeting:command", "broken": "broken_command:command", "run": "greeting"}},
        {"greeting": COMMAND, "broken_command": BROKEN},
    )
    assert elastic("--help") == 0
    help = capsys.readouterr().out
    places = [help.index(f"\n  {name} ") for name in ("run", "broken", "greet")]
    assert places == sorted(places)
    assert elastic("greet") == 0
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("audit-data", "elastic-torch"),
        ("doctor", "elastic-doctor"),
        ("drain", "elastic-operate"),
        ("exec", "elastic-torchrun"),
        ("logs", "elastic-operate"),
        ("release", "elastic-operate"),
        ("stacks", "elastic-hangs"),
        ("render", "elastic-kubernetes"),
        ("status", "elastic-operate"),
    ],
)
def test_a_command_that_is_not_installed_is_answered_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, distribution: str
) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: Catalogue([]))
    assert elastic(name, "--any=thing") == 2
    assert capsys.readouterr().err == (
        f"elastic: error: The command {name!r} is not installed.\n\n{how_to_install(distribution)}\n"
    )
    assert elastic("--help") == 0
    assert f"\n  {name} " not in capsys.readouterr().out, "it is listed once it is installed"


def test_a_misspelled_command_that_is_not_installed_is_suggested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: Catalogue([]))
    assert elastic("docter") == 2
    assert capsys.readouterr().err == (
        "elastic: error: There is no command 'docter'. Did you mean 'doctor'?\n\nSee elastic --help.\n"
    )


@pytest.mark.parametrize(
    ("backend", "distribution"),
    [
        ("c10d", "elastic-rdzv-c10d"),
        ("etcd", "elastic-rdzv-etcd"),
        ("etcd-v2", "elastic-rdzv-etcd"),
        ("file", "elastic-rdzv-file"),
        ("redis", "elastic-rdzv-redis"),
        ("static", "elastic-rdzv-c10d"),
    ],
)
def test_a_backend_that_is_not_installed_is_answered_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], backend: str, distribution: str
) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: Catalogue([]))
    assert elastic("run", f"--rdzv_backend={backend}", "--rdzv_endpoint=localhost:1", __file__) == 2
    assert capsys.readouterr().err == (
        f"elastic: error: The rendezvous backend {backend!r} is not installed.\n\n{how_to_install(distribution)}\n"
    )


def test_core_s_own_command_cannot_be_replaced(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("dist", {"elastic.commands": {"run": "broken_command"}}, {"broken_command": BROKEN})
    assert elastic("run", "--help") == 0
    assert "--nproc_per_node" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rnu", "There is no command 'rnu'. Did you mean 'run'?\n\nSee elastic --help."),
        ("--standalone", "--standalone is a flag of `elastic run`.\n\nSee elastic run -h."),
        ("--stand-alone", "There is no option '--stand-alone'.\n\nSee elastic --help."),
        ("help", "There is no command 'help'. Did you mean '--help'?\n\nSee elastic --help."),
        ("train.py", "There is no command 'train.py'. Did you mean: elastic run train.py?\n\nSee elastic --help."),
        ("./job", "There is no command './job'. Did you mean: elastic run ./job?\n\nSee elastic --help."),
        (
            "broken",
            "The command 'broken' (dist 1.0) fails to load: RuntimeError: not today.\n\n"
            "It is looked for at 'broken_command'; the other plugins are not affected.",
        ),
        ("nocommand", "The command 'nocommand' (dist 1.0) is no click command."),
    ],
)
def test_a_command_that_cannot_be_called_is_refused(
    install: Install,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").touch()
    install("dist", {"elastic.commands": {"broken": "broken_command", "nocommand": "json"}}, {"broken_command": BROKEN})
    assert elastic(*line.split()) == 2
    assert capsys.readouterr().err == f"elastic: error: {message}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nnodes 4:2", "--nnodes '4:2' has a minimum, 4, greater than its maximum, 2. Did you mean '2:4'?"),
        ("--nproc_per_node x", "--nproc_per_node 'x' is neither a whole number nor one of auto, cpu, gpu, xpu."),
        ("--nproc_per_node 0", "--nproc_per_node '0' is less than 1. Did you mean '1'?"),
        ("--rdzv_backend redsi", "There is no rendezvous backend 'redsi'."),
        ("--rdzv_backend locla", "There is no rendezvous backend 'locla'. Did you mean 'local'?"),
        ("--rdzv_conf foo=1", "--rdzv_conf: there is no key 'foo'."),
        ("--nnodez 2", "There is no option '--nnodez'. Did you mean '--nnodes'?\n\nSee elastic run --help."),
        ("--max_restarts -1", "--max_restarts '-1' is less than 0. Did you mean '0'?"),
    ],
)
def test_bad_input_ends_with_code_2_before_anything_is_started(line: str, message: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "elastic_core", "run", *line.split(), __file__],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"elastic: error: {message}")


def test_a_missing_script_is_refused_the_same_way() -> None:
    wrong = __file__.replace("test_commands", "test_comands")
    refused = subprocess.run(
        [sys.executable, "-m", "elastic_core", "run", wrong], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr == f"elastic: error: There is no script {wrong!r}. Did you mean {__file__!r}?\n"


@pytest.mark.parametrize("line", ["--help", "--version", "run --help"])
def test_asking_for_help_imports_nothing_heavy(line: str) -> None:
    """Neither what takes long to import nor the agent itself."""
    script = (
        "import sys; from elastic_core.cli.main import main; code = main(); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    asked = subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=True)
    imported = set(asked.stderr.splitlines()[-1].split())
    assert "elastic_core.cli.commands" in imported
    heavy = {"torch", "numpy", "redis", "asyncio", "elastic_core.agent.start", "elastic_core.agent.supervisor"}
    assert not imported & heavy
