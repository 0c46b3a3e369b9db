"""On a terminal, programs show what they show there under torchrun."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from pages import File, steps
from pyte import Screen, Stream
from rig import WORKERS, Rig, descendants, still_there
from terminal import Terminal

ELASTIC = [sys.executable, "-m", "elastic_core", "run", "--standalone"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
SIZE = (31, 97)
PAGE = (Path(__file__).parents[1] / "docs" / "evidence" / "terminals.md").read_text()
ROWS, COLUMNS = 10, 84
"""The window of the screens on the page."""
CLOCK_OF_RICH = r"(-:--:--|\d:\d\d:\d\d)\x1b"


def shown(rig: Rig, command: list[str], **env: str) -> tuple[int, str]:
    """Return the exit code of a launcher, and its workers' output on a terminal, without its own lines."""
    with Terminal(command, rig.folder, rig.environment({"TERM": "xterm-256color", **env}), SIZE) as terminal:
        code = terminal.exit_code()
    return code, re.sub(r"\[elastic\] .*\r\n", "", terminal.text)


def test_bars_and_colours_are_what_they_are_under_torchrun(rig: Rig) -> None:
    """tqdm, rich and the window's size, on stdout and on stderr, in the same order to the byte."""
    expected = shown(rig, [*TORCHRUN, str(WORKERS / "bars.py")])
    times = [re.compile(r"-:--:--|\d:\d\d:\d\d")] * 2
    assert "100%" in expected[1]
    assert "columns=97, lines=31" in expected[1]
    for warm in ("0", "1"):
        code, text = shown(rig, [*ELASTIC, str(WORKERS / "bars.py")], PET_WARM_START=warm)
        assert (code, times[0].sub("*", text)) == (expected[0], times[1].sub("*", expected[1]))


def on_the_page(command: str, text: str) -> str:
    """The screen after ``text`` as the page shows it; clocks, the job's id and this host's name are always the same."""
    text = re.sub(r"(?<=\[elastic\] )\d\d:\d\d:\d\d \S+:", "12:00:00 node1:", text)
    text = re.sub(r"joining job '[0-9a-f]{8}' over local as \S+", "joining job 'ID' over local as node1", text)
    text = re.sub(CLOCK_OF_RICH, "0:00:01\x1b", text)
    screen = Screen(COLUMNS, ROWS)
    Stream(screen).feed(text)
    shown = "\n".join(line.rstrip() for line in screen.display).rstrip("\n")
    return f"```text\n$ {command}\n{shown}\n```\n"


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        pytest.param("torchrun --standalone train.py", TORCHRUN, id="torchrun"),
        pytest.param("elastic run --standalone train.py", ELASTIC, id="elastic run"),
    ],
)
def test_the_page_has_the_screen_of_either_launcher(rig: Rig, command: str, launcher: list[str]) -> None:
    [program] = [step for step in steps(PAGE) if isinstance(step, File)]
    Path(rig.folder, program.path).write_text(program.text)
    environment = rig.environment({"TERM": "xterm-256color", "PET_WARM_START": "1"})
    with Terminal([*launcher, program.path], rig.folder, environment, (ROWS, COLUMNS)) as terminal:
        terminal.wait_for(rf"70%.*{CLOCK_OF_RICH}")
        screens = [on_the_page(command, terminal.text)]
        Path(rig.folder, "go_on").touch()
        assert terminal.exit_code() == 0
        screens.append(on_the_page(command, terminal.text))
    for screen in screens:
        assert screen in PAGE, screen


def test_lines_of_several_ranks_do_not_mix_on_a_terminal(rig: Rig) -> None:
    code, text = shown(rig, [*ELASTIC, "--nproc_per_node=3", str(WORKERS / "lines.py")])
    expected = [f"rank {r} {what} {n}" for r in range(3) for what in ("line", "error") for n in range(200)]
    assert (code, sorted(text.splitlines())) == (0, sorted(expected))


def test_lines_of_several_ranks_do_not_mix_in_a_file(rig: Rig) -> None:
    agent = rig.run("--standalone", "--nproc_per_node=3", WORKERS / "lines.py")
    assert agent.exit_code() == 0
    expected = [f"rank {r} {what} {n}" for r in range(3) for what in ("line", "error") for n in range(200)]
    assert sorted(line for line in agent.lines if not line.startswith("[elastic]")) == sorted(expected)


def test_a_worker_sees_the_window_change_its_size(rig: Rig) -> None:
    with Terminal([*ELASTIC, str(WORKERS / "window.py")], rig.folder, rig.environment(), SIZE) as terminal:
        terminal.wait_for("window 31 x 97")
        terminal.resize(50, 200)
        terminal.wait_for("window 50 x 200")
        terminal.type(b"\x03")
        assert terminal.exit_code() == 128 + signal.SIGINT


def test_a_traceback_on_a_terminal_is_found_and_has_no_colours_in_the_report(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(
        "import sys\n"
        "sys.stderr.write('\\x1b[1mTraceback (most recent call last):\\x1b[0m\\n')\n"
        "sys.exit('\\x1b[1;35mValueError\\x1b[0m: \\x1b[35mboom\\x1b[0m')\n"
    )
    with Terminal([*ELASTIC, str(script)], rig.folder, rig.environment(), SIZE) as terminal:
        terminal.wait_for(r"error +ValueError: boom")
        terminal.wait_for(r"\| Traceback \(most recent call last\):\r\n.*\| ValueError: boom\r\n")
        assert terminal.exit_code() == 1


def test_processes_of_a_killed_agent_on_a_terminal_end(rig: Rig) -> None:
    with Terminal([*ELASTIC, str(WORKERS / "stubborn.py")], rig.folder, rig.environment(), SIZE) as terminal:
        terminal.wait_for('"started"')
        pids = descendants(terminal.process.pid)
        terminal.process.kill()
        assert still_there(pids, within=30.0) == []


def test_a_job_that_ignores_the_end_of_its_terminal_goes_on(rig: Rig) -> None:
    """The worker that had the terminal, and the one that is started when it is gone."""
    writes = "echo out && echo err >&2 && touch written_$TORCHELASTIC_RESTART_COUNT"
    worker = f"echo ready; until [ -e go ]; do sleep 0.02; done; {writes} && [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *ELASTIC, "--max_restarts=1"]
    command += ["--no_python", "sh", "-c", worker]
    with Terminal(command, rig.folder, rig.environment(), SIZE) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        Path(rig.folder, "go").touch()
        assert terminal.process.wait(60) == 0
    assert [Path(rig.folder, f"written_{count}").exists() for count in range(2)] == [True, True]


@pytest.mark.parametrize("no_color", ["", "1"])
def test_failures_and_restarts_have_colours(rig: Rig, no_color: str) -> None:
    script = Path(rig.folder, "fails.py")
    script.write_text("print('plain'); raise ValueError('boom')")
    command = [*ELASTIC, "--max_restarts=1", str(script)]
    environment = rig.environment({"TERM": "xterm-256color", "NO_COLOR": no_color})
    with Terminal(command, rig.folder, environment, SIZE) as terminal:
        assert terminal.exit_code() == 1
    told = re.findall(r"\[elastic\] \S+ \S+: (.*)\r\n", terminal.text)
    coloured = {"\x1b[31m": "the job has failed", "\x1b[33m": "rank 0", "\x1b[36m": "round 2"}
    for colour, text in coloured.items():
        [line] = [line for line in told if re.match(rf"(\x1b\[\d+m)?{text}", line)][:1]
        assert line.startswith(text if no_color else colour + text)
        assert line.endswith("\x1b[0m") is not bool(no_color)


def test_the_status_of_a_job_has_colours(rig: Rig, file_rendezvous: list[str]) -> None:
    agent = rig.run("--nnodes=1:2", *file_rendezvous, WORKERS / "sleeper.py")
    agent.wait_for_report("started")
    command = [sys.executable, "-m", "elastic_core", "status", *file_rendezvous]
    with Terminal(command, rig.folder, rig.environment({"TERM": "xterm-256color"}), SIZE) as terminal:
        assert terminal.exit_code() == 0
    assert "is \x1b[32mrunning\x1b[0m\r\n" in terminal.text
