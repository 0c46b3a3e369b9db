from __future__ import annotations

import pytest

from elastic_core.host.terminal import printable


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
