from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from elastic_core.host.terminal import RED, painter, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 7 → 8", "größe 7 → 8"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202eevil", r"\u202eevil"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_text(text: str, shown: str) -> None:
    assert printable(text) == shown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "shown"),
    [
        pytest.param(Screen(), {"TERM": "xterm"}, "\x1b[31mfailed\x1b[0m", id="a terminal"),
        pytest.param(Screen(), {}, "\x1b[31mfailed\x1b[0m", id="a terminal of any kind"),
        pytest.param(Screen(), {"NO_COLOR": ""}, "\x1b[31mfailed\x1b[0m", id="an empty NO_COLOR counts as none"),
        pytest.param(Screen(), {"NO_COLOR": "1"}, "failed", id="NO_COLOR"),
        pytest.param(Screen(), {"TERM": "dumb"}, "failed", id="a dumb terminal"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": "1"}, "failed", id="a pipe or a file"),
        pytest.param(None, {}, "failed", id="no stderr"),
    ],
)
def test_colours_are_for_terminals(stream: io.StringIO | None, environ: Mapping[str, str], shown: str) -> None:
    assert painter(stream, environ)("failed", RED) == shown
