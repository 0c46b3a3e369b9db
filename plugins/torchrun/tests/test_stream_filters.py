"""Lines with a wanted text are copied to a file of the round, those of all ranks to the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.config import Program, ProgramKind, RunConfig
from elastic_core.config.parse import Stream
from elastic_core.events import Event
from elastic_core.monitors import OutputReader, RunningRound
from elastic_torchrun.stream_filters import FLAGS, CopiedLines, StreamFilters, texts

OUT, ERR = Stream.OUT, Stream.ERR


@pytest.fixture
def published() -> list[Event]:
    return []


@pytest.fixture
def round(tmp_path: Path, published: list[Event]) -> RunningRound:
    return RunningRound(1, "run", ["a"], tmp_path, publish=published.append)


def started(round: RunningRound, **given: str) -> bool:
    """Start a round of a run with these flags; return whether its files are kept."""
    settings = {f"duplicate_{name}_filters": texts(text) for name, text in given.items()}
    plugin = StreamFilters()
    program = Program(ProgramKind.EXECUTABLE, "sh")
    kept = plugin.elastic_configure(RunConfig(program=program, rdzv_id="job", settings=settings))
    plugin.elastic_round_starts(round)
    return kept


def opened(round: RunningRound, rank: int, stream: Stream) -> OutputReader:
    [reader] = round.readers.open(rank, stream, f"[rank{rank}]:")
    return reader


def test_a_comma_within_a_text_is_written_twice() -> None:
    assert FLAGS[OUT].read("apple,red,,green,") == ("apple", "red,green")
    assert FLAGS[ERR].value == ()


def test_lines_with_a_wanted_text_of_all_ranks_are_copied_behind_their_prefix(round: RunningRound) -> None:
    assert started(round, stdout="apple,plum", stderr="cherry")
    assert (round.readers.every_stream, round.readers.apart) == (True, True)
    one, two, error = opened(round, 1, OUT), opened(round, 2, OUT), opened(round, 1, ERR)
    one.feed(b"an ap")
    two.feed(b"[rank2]: plums\npear\n")
    one.feed(b"ple\ncherry\n50% of apples\rlast apple")
    error.feed(b"apple\na cherry\n")
    for reader in (one, two, error):
        reader.finish()
    lines = ["[rank2]: plums", "[rank1]:an apple", "[rank1]:50% of apples", "[rank1]:last apple"]
    assert (round.directory / "filtered_stdout.log").read_text().splitlines() == lines
    assert (round.directory / "filtered_stderr.log").read_text() == "[rank1]:a cherry\n"


def test_only_the_streams_that_have_texts_are_copied(round: RunningRound) -> None:
    assert started(round, stderr="cherry")
    assert (round.readers.every_stream, round.readers.apart) == (False, True)
    assert round.readers.open(1, OUT, "") == []
    opened(round, 1, ERR).finish()
    assert [path.name for path in round.directory.iterdir()] == ["filtered_stderr.log"]


def test_without_texts_nothing_is_read(round: RunningRound) -> None:
    assert not started(round)
    assert round.readers.openers == []


def test_a_file_that_cannot_be_opened_is_reported_once_and_output_goes_on(
    round: RunningRound, published: list[Event]
) -> None:
    (round.directory / "filtered_stdout.log").symlink_to("elsewhere")
    started(round, stdout="apple")
    assert [round.readers.open(rank, OUT, "") for rank in range(3)] == [[], [], []]
    [event] = published
    assert "filtered_stdout.log cannot be written" in event.message


def test_a_full_disk_is_reported_once_and_output_goes_on() -> None:
    said: list[str] = []
    reader = CopiedLines(("apple",), "", Path("/dev/full"), said.append)
    reader.feed(b"apple\napple\n")
    reader.finish()
    assert said == ["/dev/full is not complete: No space left on device"]
