from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_metrics.events import LineFile, encoded

SMALL_DISK = """
import resource, sys
from pathlib import Path
from elastic_metrics.events import LineFile

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the kernel takes 1,000 bytes, a part of a line among them
file = LineFile.create(Path(sys.argv[1]))
for number in range(100):
    try:
        file.append({"number": number, "text": "x" * 90})
    except OSError:
        print(number)
        break
"""


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"a": 1, "b": None, "c": True, "d": 0.5, "e": "x"}, b'{"a": 1, "b": null, "c": true, "d": 0.5, "e": "x"}\n'),
        ({"text": "two\nlines"}, b'{"text": "two\\nlines"}\n'),
        ({"text": "\u00e9 \u2028 \udcff"}, b'{"text": "\\u00e9 \\u2028 \\udcff"}\n'),
        ({"never": float("inf"), "what": float("nan")}, b'{"never": "inf", "what": "nan"}\n'),
        ({"path": Path("/a"), "inner": {1: (2, [3])}}, b'{"path": "/a", "inner": {"1": [2, [3]]}}\n'),
    ],
)
def test_a_record_is_one_line_of_json_whatever_is_in_it(record: dict[str, object], line: bytes) -> None:
    assert encoded(record) == line


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "lines"
    file = LineFile.create(path)
    file.append({"number": 1})
    assert path.read_bytes() == b'{"number": 1}\n'
    file.append({"number": 2})
    assert path.read_bytes() == b'{"number": 1}\n{"number": 2}\n'
    file.close()


def test_a_line_for_which_there_is_only_part_of_the_room_is_not_written_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    done = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    refused = int(done.stdout)
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["number"] for line in lines] == list(range(refused))
    assert refused > 1
    assert lines[-1].endswith("\n")


def test_a_full_disk_is_an_os_error() -> None:
    file = LineFile(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError, match="No space left"):
        file.append({"number": 1})
    file.close()


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("mine\n")
    with pytest.raises(FileExistsError):
        LineFile.create(path)
    assert path.read_text() == "mine\n"
