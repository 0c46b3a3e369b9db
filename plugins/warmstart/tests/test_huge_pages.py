from __future__ import annotations

import mmap

from elastic_warmstart.process import LARGE, collapse


def test_memory_is_the_same_after_it_was_put_into_large_pages() -> None:
    with mmap.mmap(-1, 4 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: LARGE // 4] = bytes(range(16))
        assert collapse(lambda: False)
        assert memory[:: LARGE // 4] == bytes(range(16))


def test_it_stops_as_soon_as_there_is_something_else_to_do() -> None:
    asked = []

    def interrupted() -> bool:
        asked.append(1)
        return len(asked) == 2

    with mmap.mmap(-1, 4 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert not collapse(interrupted), "not all of it"
    assert len(asked) == 2
