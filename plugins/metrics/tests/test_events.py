from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_core.events import Event, Level
from elastic_core.plugins.manager import Plugins
from elastic_metrics.events import KEPT, EventLines, LineFile, iso

NAME = "events_node_1_c0ffee.jsonl"

Start = Callable[..., None]
End = Callable[[], None]
Hear = Callable[[str], Event]


def warnings(heard: list[Event]) -> list[str]:
    return [event.message for event in heard if event.level >= Level.WARNING]


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


def test_every_event_is_a_line_with_both_times_at_which_it_happened(
    plugins: Plugins, start: Start, end: End, tmp_path: Path
) -> None:
    plugins.register("events", EventLines(wall=lambda: 1_000_000.25, monotonic=lambda: 60.0))
    start(tmp_path)
    plugins.publish(Event("worker_failed", "rank 3 failed", Level.WARNING, {"rank": 3}, at=57.5))
    end()
    assert written(tmp_path)[-1] == {
        "time": "1970-01-12T13:46:37.750000Z",
        "monotonic": 57.5,
        "name": "worker_failed",
        "level": "WARNING",
        "message": "rank 3 failed",
        "fields": {"rank": 3},
    }


def test_the_file_says_which_run_and_node_it_is_about(plugins: Plugins, start: Start, end: End, tmp_path: Path) -> None:
    plugins.register("events", EventLines())
    start(tmp_path, slot=1)
    end()
    (line,) = written(tmp_path)
    assert line["name"] == "run_starts"
    assert line["fields"] == {
        "job": "job",
        "run": "uid",
        "node": "node/1 (agent 2)",
        "node_id": "c0ffee",
        "host": "node/1",
        "slot": 1,
        "role": "trainer",
        "local_world_size": 2,
        "backend": "local",
    }


def test_events_before_the_run_started_are_kept_and_follow_the_first_line(
    plugins: Plugins, start: Start, end: End, tmp_path: Path
) -> None:
    plugins.register("events", EventLines())
    for number in range(KEPT + 2):
        plugins.publish(Event("joining", str(number)))
    start(tmp_path)
    end()
    first, *early = written(tmp_path)
    assert (first["name"], first["monotonic"]) == ("run_starts", early[0]["monotonic"])
    assert [line["message"] for line in early] == [str(number) for number in range(2, KEPT + 2)]


def test_without_a_log_directory_nothing_is_written(
    plugins: Plugins, start: Start, end: End, heard: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plugins.register("events", EventLines())
    plugins.publish(Event("joining", ""))
    start(None)
    plugins.publish(Event("round_started", ""))
    end()
    assert warnings(heard) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_never_starts_ends_without_a_word(plugins: Plugins, end: End, heard: list[Event]) -> None:
    plugins.register("events", EventLines())
    plugins.publish(Event("joining", ""))
    end()
    assert [event.name for event in heard] == ["joining"]


def test_the_end_of_the_run_closes_the_file(plugins: Plugins, start: Start, end: End, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    plugins.register("events", EventLines(open=lambda path: LineFile(descriptor)))
    start(tmp_path)
    end()
    assert (tmp_path / "file").read_text().count("\n") == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_directory_that_cannot_be_written_to_costs_one_warning(
    plugins: Plugins, start: Start, end: End, hear: Hear, heard: list[Event]
) -> None:
    plugins.register("events", EventLines())
    start(Path("/proc/sys"))  # read-only, for root too
    hear("observer_switched_off")
    plugins.publish(Event("round_started", "round 1"))
    end()
    (warning,) = warnings(heard)
    assert f"No more events are written to '/proc/sys/{NAME}': " in warning
    assert "Name a --log_dir" in warning
    assert heard[-1].name == "round_started"


def test_a_full_disk_costs_one_warning_and_the_descriptor_is_given_back(
    plugins: Plugins, start: Start, end: End, hear: Hear, heard: list[Event], tmp_path: Path
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    plugins.register("events", EventLines(open=lambda path: LineFile(full)))
    start(tmp_path)
    hear("observer_switched_off")
    for number in range(3):
        plugins.publish(Event("round_started", f"round {number}"))
    end()
    (warning,) = warnings(heard)
    assert f"No more events are written to '{tmp_path / NAME}': No space left on device." in warning
    assert [event.name for event in heard[-3:]] == ["round_started"] * 3
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(full)


@pytest.mark.parametrize(
    ("epoch", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1769862896.789012, "2026-01-31T12:34:56.789012Z"),
        (1769862896.9999999, "2026-01-31T12:34:57.000000Z"),
    ],
)
def test_an_instant_is_written_in_utc(epoch: float, text: str) -> None:
    assert iso(epoch) == text
