"""Files are published once and whole, whatever the file system answers; its errors reach people with a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError
from elastic_rdzv_file.disk import Numbered, fetch, publish, safe_name, store_errors


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    return f"{tmp_path}/scratch"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("job-42_a.b", "job-42_a.b"),
        ("a/b c", "a%2Fb%20c"),
        ("", "%"),
        ("%", "%25"),
        (".", "%2E"),
        ("..", "%2E."),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("not utf-8: \udcff", "not%20utf-8%3A%20%FF"),
        ("nul\0", "nul%00"),
    ],
)
def test_names_stay_readable(text: str, name: str) -> None:
    assert safe_name(text) == name


def test_long_names_are_cut_and_stay_different() -> None:
    texts = ["x" * 100, "x" * 101, "x" * 5000, "x" * 4999 + "y", "ß" * 5000]
    names = {safe_name(text) for text in texts}
    assert len(names) == len(texts)
    assert max(map(len, names)) == 100
    assert not names & {safe_name(name) for name in names if "%" in name}, "no other text has a cut name"


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_published_once(tmp_path: Path, scratch: str, durable: bool) -> None:
    target = str(tmp_path / "target")
    assert publish(scratch, target, b"first", durable=durable)
    assert not publish(scratch, target, b"second", durable=durable)
    assert (fetch(target, 100), os.listdir(scratch)) == (b"first", [])


def test_a_link_whose_reply_was_lost_was_made(tmp_path: Path, scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lossy(source: str, target: str) -> None:
        link(source, target)
        link(source, target)  # the client sends it again, and the server answers that it exists

    monkeypatch.setattr(os, "link", lossy)
    assert publish(scratch, f"{tmp_path}/target", b"content")
    assert fetch(f"{tmp_path}/target", 100) == b"content"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, scratch: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(RendezvousConnectionError, match=f"'{tmp_path}' has no hard links"):
        publish(scratch, f"{tmp_path}/target", b"content")
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_names_is_forgiven_but_no_other_failure(
    tmp_path: Path, scratch: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def picky(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", picky)
    if number == errno.EINVAL:
        assert publish(scratch, f"{tmp_path}/target", b"content", durable=True)
    else:
        with pytest.raises(OSError, match="Input/output error"):
            publish(scratch, f"{tmp_path}/target", b"content", durable=True)


def test_a_file_deleted_on_another_host_while_it_is_read_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"content")

    def stale(fd: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stale)
        content = fetch(f"{tmp_path}/file", 100)
    assert content is None


def test_the_last_number_is_found_from_anywhere(tmp_path: Path) -> None:
    early, late = Numbered(str(tmp_path)), Numbered(str(tmp_path))
    assert early.last() == 0
    for number in range(1, 12):
        Path(early.path(number)).touch()
    assert (early.last(), late.last()) == (11, 11)
    Path(late.path(12)).touch()
    assert (early.last(), late.last()) == (12, 12)
    Path(early.path(12)).unlink()
    assert late.last() == 11, "somebody has deleted the newest"
    for number in range(1, 12):
        Path(early.path(number)).unlink()
    assert (early.last(), late.last()) == (0, 0)


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, RendezvousConnectionError, "Free some space"),
        (errno.EDQUOT, RendezvousConnectionError, "quota"),
        (errno.EACCES, RendezvousConnectionError, "Let this user"),
        (errno.EROFS, RendezvousConnectionError, "read-only"),
        (errno.ENOENT, RendezvousConnectionError, "do not delete"),
        (errno.ESTALE, RendezvousConnectionError, "keep it mounted"),
        (errno.EMFILE, RendezvousConnectionError, "ulimit -n"),
        (errno.ENFILE, RendezvousConnectionError, "no file descriptors left"),
        (errno.EIO, RendezvousConnectionError, "Check the disk"),
        (errno.ELOOP, RendezvousStateError, "Something else writes"),
    ],
)
def test_errors_name_the_path_and_a_remedy(number: int, kind: type[ElasticError], remedy: str) -> None:
    with pytest.raises(kind) as caught, store_errors("/job"):
        raise OSError(number, os.strerror(number), "/job/ledger")
    assert "'/job/ledger'" in caught.value.message
    assert remedy in (caught.value.hint or "")
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_without_a_path_names_the_directory() -> None:
    with pytest.raises(RendezvousConnectionError, match="'/job': No space left"), store_errors("/job"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
