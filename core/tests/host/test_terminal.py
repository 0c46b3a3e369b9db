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
def test_a_control_sequence_is_shown_as_text(text: str, shown: str) -> None:
    assert printable(text) == shown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        pytest.param(Screen(), {"TERM": "xterm"}, True, id="a terminal"),
        pytest.param(Screen(), {}, True, id="a terminal of any kind"),
        pytest.param(Screen(), {"TERM": "dumb"}, False, id="a dumb terminal"),
        pytest.param(io.StringIO(), {"TERM": "xterm"}, False, id="a pipe or a file"),
        pytest.param(Screen(), {"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param(Screen(), {"NO_COLOR": "0"}, False, id="any value of NO_COLOR"),
        pytest.param(Screen(), {"NO_COLOR": ""}, True, id="an empty NO_COLOR counts as none"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": "1"}, True, id="FORCE_COLOR"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": "0"}, True, id="any value of FORCE_COLOR"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": ""}, False, id="an empty FORCE_COLOR counts as none"),
        pytest.param(Screen(), {"FORCE_COLOR": "1", "TERM": "dumb"}, True, id="FORCE_COLOR on a dumb terminal"),
        pytest.param(Screen(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, id="both, on a terminal"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, id="both, in a pipe"),
        pytest.param(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": ""}, True, id="FORCE_COLOR and an empty NO_COLOR"),
        pytest.param(None, {"FORCE_COLOR": "1"}, False, id="no stderr"),
    ],
)
def test_which_streams_have_colours(stream: io.StringIO | None, environ: Mapping[str, str], coloured: bool) -> None:
    shown = painter(stream, environ)("failed", RED)
    assert shown == ("\x1b[31mfailed\x1b[0m" if coloured else "failed")
