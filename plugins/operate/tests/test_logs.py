"""``elastic logs`` over directories of runs as agents lay them out."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.errors import UsageError
from elastic_operate.logs import Follower, Selection, find_logs, find_run


def keep(run: Path, number: int, rank: int, text: str, stream: str = "stdout") -> Path:
    path = run / f"round_{number}" / f"rank_{rank}" / f"{stream}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def printed(run: Path, selection: Selection = Selection(), *, last: bool = True) -> list[str]:  # noqa: B008  # a value
    out = io.BytesIO()
    Follower(run, selection, out).print_new(last=last)
    return out.getvalue().decode().splitlines()


def elastic_logs(*arguments: str | Path, runtime: str = "/nowhere") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_core", "logs", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PET_LOG_DIR"}
    environment |= {"XDG_RUNTIME_DIR": runtime, "TMPDIR": runtime}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_lines_are_printed_by_round_and_rank_in_the_order_of_numbers(tmp_path: Path) -> None:
    for number, rank in ((2, 0), (10, 0), (2, 10), (2, 9)):
        keep(tmp_path, number, rank, "a line\n")
    assert [line.partition(", stdout")[0] for line in printed(tmp_path)] == [
        "[round 2, rank 0",
        "[round 2, rank 9",
        "[round 2, rank 10",
        "[round 10, rank 0",
    ]


@pytest.mark.parametrize(
    ("selection", "texts"),
    [
        (Selection(round=1), ["one"]),
        (Selection(rank=1), ["err", "two"]),
        (Selection(rank=1, stream="stderr"), ["err"]),
        (Selection(round=3), []),
    ],
)
def test_a_round_a_rank_and_a_stream_are_selected(selection: Selection, texts: list[str], tmp_path: Path) -> None:
    keep(tmp_path, 1, 0, "one\n")
    keep(tmp_path, 2, 1, "two\n")
    keep(tmp_path, 2, 1, "err\n", "stderr")
    assert [line.partition("] ")[2] for line in printed(tmp_path, selection)] == texts


def test_other_files_are_not_output(tmp_path: Path) -> None:
    keep(tmp_path, 1, 0, "one\n")
    (tmp_path / "events.jsonl").write_text("{}\n")
    (tmp_path / "round_1" / "filtered_stdout.log").write_text("one\n")
    assert [log.path.name for log in find_logs(tmp_path, Selection())] == ["stdout.log"]


def test_new_output_is_printed_once_and_a_line_when_it_has_its_end(tmp_path: Path) -> None:
    path, out = keep(tmp_path, 1, 0, "one\ntw"), io.BytesIO()
    follower = Follower(tmp_path, Selection(), out)
    assert follower.print_new(last=False)
    assert not follower.print_new(last=False)
    with path.open("a") as file:
        file.write("o\n")
    keep(tmp_path, 2, 0, "three\n")
    assert follower.print_new(last=False)
    lines = out.getvalue().decode().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["one", "two", "three"]


def test_bytes_of_any_kind_are_passed_on(tmp_path: Path) -> None:
    path = keep(tmp_path, 1, 0, "")
    path.write_bytes(b"\xff\x00\n")
    out = io.BytesIO()
    Follower(tmp_path, Selection(), out).print_new(last=True)
    assert out.getvalue() == b"[round 1, rank 0, stdout] \xff\x00\n"


def test_progress_bars_are_lines_and_a_long_line_is_cut_and_nothing_is_read_twice(tmp_path: Path) -> None:
    path = keep(tmp_path, 1, 0, "")
    path.write_bytes(b" 1%\r 2%\r\nab" + b"x" * 200_000 + b"\nlast")
    out = io.BytesIO()
    follower = Follower(tmp_path, Selection(), out)
    follower.print_new(last=False)
    assert not follower.print_new(last=False)
    follower.print_new(last=True)
    lines = [line.partition("] ")[2] for line in out.getvalue().decode().splitlines()]
    assert lines[:2] == [" 1%", " 2%"]
    assert "".join(lines[2:-1]) == "ab" + "x" * 200_000
    assert lines[-1] == "last"


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    keep(tmp_path, 1, 0, "one\n")
    for rank, make in ((1, lambda path: path.symlink_to("/etc/passwd")), (2, os.mkfifo)):
        path = keep(tmp_path, 1, rank, "")
        path.unlink()
        make(path)
    keep(tmp_path, 1, 3, "").unlink()
    assert printed(tmp_path) == ["[round 1, rank 0, stdout] one"]
    assert find_run(tmp_path) == tmp_path


def test_of_several_runs_the_one_that_wrote_last_is_taken(tmp_path: Path) -> None:
    for at, name in ((2_000_000_000, "job_new"), (1_000_000_000, "job_old")):
        path = keep(tmp_path / name, 1, 0, name)
        for entry in (path, path.parent, path.parent.parent, tmp_path / name):
            os.utime(entry, (at, at))
    assert find_run(tmp_path).name == "job_new"
    assert find_run(tmp_path / "job_old").name == "job_old"


def test_a_directory_without_output_says_how_output_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No run has kept output") as caught:
        find_run(tmp_path)
    assert "--log_dir" in str(caught.value.hint)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = elastic_logs(tmp_path / "nothing")
    assert done.returncode == 2
    assert f"{str(tmp_path / 'nothing')!r} cannot be read" in done.stderr


def test_a_selection_without_output_says_what_there_is(tmp_path: Path) -> None:
    keep(tmp_path, 3, 1, "one\n")
    done = elastic_logs(tmp_path, "--rank", "7")
    assert done.returncode == 2
    assert "There is: rounds 3 to 3, ranks 1 to 1, stdout." in done.stderr


@pytest.mark.parametrize("wrong", [["--stream=stderr"], ["--rank=7"], ["--round=7"]])
def test_output_that_is_empty_is_no_error_and_output_that_is_not_there_is_one(tmp_path: Path, wrong: list[str]) -> None:
    keep(tmp_path, 3, 1, "")
    for selected in ([], ["--stream=stdout"]):
        done = elastic_logs(tmp_path, *selected)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "elastic: the output is empty\n")
    assert elastic_logs(tmp_path, *wrong).returncode == 2


def test_a_run_that_has_kept_only_error_files_says_how_output_is_kept(tmp_path: Path) -> None:
    keep(tmp_path, 1, 0, "").rename(tmp_path / "round_1" / "rank_0" / "error.json")
    done = elastic_logs(tmp_path)
    assert done.returncode == 2
    assert "Start the job with --log_dir=DIRECTORY" in done.stderr


def test_without_a_directory_and_a_job_that_keeps_logs_it_is_said_how_they_are_kept() -> None:
    done = elastic_logs()
    assert done.returncode == 2
    assert done.stderr.startswith("elastic: error: No job of this host keeps logs.\n")
    assert "Start the job with --log_dir=DIRECTORY" in done.stderr


def test_following_prints_what_comes_until_it_is_interrupted(tmp_path: Path) -> None:
    path = keep(tmp_path, 1, 0, "one\n")
    command = [sys.executable, "-m", "elastic_core", "logs", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("] one\n")
        with path.open("a") as file:
            file.write("two\n")
        assert process.stdout.readline().endswith("] two\n")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
