"""The store in a directory passes the suite, told of changes or looking for them, and mistrusts what it finds there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, UsageError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Cursor, Link
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_file import inotify, plugin
from elastic_rdzv_file.backend import FileBackend
from elastic_rdzv_file.inotify import Alarm
from elastic_testing.backend_conformance import (
    BackendConformance,
    HeldLineConformance,
    LineConformance,
    PlantConformance,
    ProcessConformance,
    RestartConformance,
)
from elastic_testing.connections import MakeBackend, long_wait
from elastic_testing.faults import Data, Keeper, LossyCalls
from elastic_testing.race import PATIENCE
from elastic_testing.run_suite import Plant, PlantRow

FIRST = Link(1, "first")


class Folder(Keeper):
    """Deletes jobs' directories under their agents, and puts copies in their place."""

    def __init__(self, parent: Path, copy: Path) -> None:
        self.parent, self.kept = parent, copy

    def copy(self) -> None:
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.parent, self.kept)

    def restart(self, data: Data) -> None:
        if data is not Data.KEPT:
            for job in self.parent.iterdir():
                shutil.rmtree(job)
        if data is Data.COPY:
            shutil.copytree(self.kept, self.parent, dirs_exist_ok=True)


class TestFileBackend(BackendConformance, ProcessConformance, RestartConformance, PlantConformance):
    @pytest.fixture
    def parent(self, tmp_path: Path) -> Path:
        (tmp_path / "jobs").mkdir()
        return tmp_path / "jobs"

    @pytest.fixture
    def make_backend(self, parent: Path) -> MakeBackend:
        return partial(FileBackend.open, parent)

    @pytest.fixture
    def keeper(self, parent: Path, tmp_path: Path) -> Keeper:
        return Folder(parent, tmp_path / "copy")

    @pytest.fixture
    def plant(self, parent: Path) -> Plant:
        def planted(run_id: str, index: int, record: bytes) -> bool:
            (parent / run_id / f"ledger/{index:08d}").write_bytes(record)
            return True

        return planted

    @pytest.fixture
    def plant_row(self, parent: Path) -> PlantRow:
        def planted(run_id: str, node_id: str, record: bytes) -> bool:
            [value] = (parent / run_id / "values").glob(f"*-{node_id}.0")
            value.write_bytes(record)
            return True

        return planted

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend


class TestFileBackendWhoseCallsFail(LineConformance, HeldLineConformance):
    @pytest.fixture
    def line(self) -> LossyCalls:
        return LossyCalls()

    @pytest.fixture
    def make_backend(self, line: LossyCalls, tmp_path: Path) -> MakeBackend:
        return line.through(partial(FileBackend.open, tmp_path))


@pytest.mark.variant
class TestFileBackendOnANetworkMount(BackendConformance):
    @pytest.fixture
    def make_backend(self, tmp_path: Path) -> MakeBackend:
        return partial(FileBackend.open, tmp_path, poll_interval=0.01)


@pytest.mark.variant
class TestFileBackendWithoutInotify(BackendConformance):
    @pytest.fixture
    def make_backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBackend:
        monkeypatch.setattr(inotify, "told", lambda directory: False)
        monkeypatch.setattr(inotify, "POLL_INTERVAL", 0.01)
        return partial(FileBackend.open, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> FileBackend:
    return FileBackend.open(tmp_path, "job")


@pytest.fixture
def job(store: FileBackend, tmp_path: Path) -> Path:
    """The directory of ``store``, with one entry and one row in it."""
    store.append(ORIGIN, FIRST, b"1")
    store.enter("node", b"value")
    return tmp_path / "job"


def test_only_the_jobs_user_may_look_into_its_directory(job: Path) -> None:
    assert job.stat().st_mode & 0o777 == 0o700


def test_a_heartbeat_wakes_nobody(store: FileBackend, job: Path) -> None:
    alarm = Alarm()
    assert [alarm.watch(f"{job}/{part}") for part in ("ledger", "roster")] == [True, True]
    store.heartbeat("node", 1)
    assert not alarm.sleep(0)
    store.amend("node", 1, b"new")
    assert alarm.sleep(PATIENCE)
    alarm.close()


def test_a_change_while_the_watch_is_set_up_is_not_missed(store: FileBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, other = Alarm.watch, store.connect()

    def late(alarm: Alarm, directory: str) -> bool:
        other.append(ORIGIN, FIRST, b"1")
        return watch(alarm, directory)

    monkeypatch.setattr(Alarm, "watch", late)
    assert long_wait(store, Cursor(), roster=False).result(PATIENCE) == Cursor(1)


@pytest.mark.parametrize("ids", [None, ["node"]])
def test_a_row_that_is_renamed_while_rows_are_listed_is_listed(
    store: FileBackend, job: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str] | None
) -> None:
    """A directory of a thousand files is read in pieces, and a file that is renamed between two may be in none."""
    listdir = os.listdir

    def torn(path: str) -> list[str]:
        if Path(path) != job / "roster":
            return listdir(path)
        monkeypatch.setattr(os, "listdir", listdir)
        return []

    monkeypatch.setattr(os, "listdir", torn)
    assert [row.node_id for row in store.roster(ids)] == ["node"]


def test_an_amendment_that_is_overtaken_leaves_nothing_behind(
    store: FileBackend, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, other = os.rename, store.connect()

    def late(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        other.amend("node", 7, b"7")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    store.amend("node", 3, b"3")
    assert [(row.revision, row.value) for row in store.roster()] == [(7, b"7")]
    assert os.listdir(job / "values") == ["00000001-node.7"]


@pytest.mark.parametrize(
    "stray", ["ledger/.nfs0000000000000007", "roster/.nfs07", "roster/README", "serials/x", "scratch/y"]
)
def test_files_of_others_are_passed_over(store: FileBackend, job: Path, tmp_path: Path, stray: str) -> None:
    (job / stray).write_bytes(b"")
    newcomer = FileBackend.open(tmp_path, "job")
    assert newcomer.wait(Cursor(), roster=True, timeout=0).head == 1
    assert [row.node_id for row in newcomer.roster()] == ["node"]
    assert newcomer.enter("other", b"") == 2


def test_nothing_is_left_of_what_was_replaced_or_removed(store: FileBackend, job: Path) -> None:
    for revision in (1, 2, 3):
        store.amend("node", revision, b"new")
    store.amend("node", 2, b"old")
    store.append(ORIGIN, Link(1, "late"), b"late")
    files = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}
    row = {"roster/00000001-node.3", "values/00000001-node.3", "heartbeats/00000001-node"}
    assert files == {"ledger/00000001", "serials/00000001", *row}
    store.remove("node")
    assert {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()} == files - row


def _link(path: Path) -> None:
    other = path.with_name("elsewhere")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        pytest.param(_link, ["symbolic link"], id="a symbolic link"),
        pytest.param(_fifo, ["not a plain file"], id="a FIFO that would block"),
        pytest.param(_folder, ["not a plain file"], id="a directory"),
        pytest.param(lambda path: path.write_bytes(b"x" * 1_000_000), ["1000000 bytes"], id="too large a file"),
        pytest.param(
            lambda path: path.write_bytes(b"1 id\n" + bytes(MAX_VALUE_BYTES + 1)),
            [str(MAX_VALUE_BYTES + 6)],
            id="too large a value",
        ),
        pytest.param(lambda path: path.write_bytes(b"no line"), ["in the place of"], id="no record"),
        pytest.param(lambda path: path.write_bytes(b"\xff\nvalue"), ["in the place of"], id="a name that is no text"),
    ],
)
@pytest.mark.parametrize("what", ["ledger/00000001", "values/00000001-node.0"])
def test_a_planted_file_is_refused(
    store: FileBackend, job: Path, what: str, plant: Callable[[Path], None], words: list[str]
) -> None:
    plant(job / what)
    if what.startswith("ledger"):
        with pytest.raises(RendezvousStateError) as caught:
            store.read(1)
        said = str(caught.value)
    else:
        [row] = store.roster()
        assert row.node_id == "node"
        said = row.broken
    assert all(word in said for word in (*words, str(job / what)))


@pytest.mark.parametrize("content", [b"", b"short", bytes(16), b"x" * 16])
def test_a_heartbeat_that_stays_torn_is_none(store: FileBackend, job: Path, content: bytes) -> None:
    (job / "heartbeats/00000001-node").write_bytes(content)
    [row] = store.roster()
    assert "00000001-node' is no heartbeat" in row.broken
    assert store.heartbeat("other", 1, "node").watched is None


def test_a_row_whose_file_was_deleted_or_never_there_is_named(store: FileBackend, job: Path) -> None:
    (job / "values/00000001-node.0").unlink()
    (job / "roster/00000002-evil%2F.0").touch()
    assert {row.node_id: row.broken.partition(". ")[0] for row in store.roster()} == {
        "node": f"{str(job / 'values/00000001-node.0')!r} is gone",
        "evil/": f"{str(job / 'values/00000002-evil%2F.0')!r} is gone",
    }


def test_entries_deleted_under_a_running_job_are_missed(store: FileBackend, job: Path) -> None:
    store.append(FIRST, Link(2, "second"), b"2")
    assert store.heartbeat("node", 1).head == 2
    (job / "ledger/00000002").unlink()
    assert store.heartbeat("node", 2).head == 1
    assert store.wait(Cursor(2), roster=False, timeout=PATIENCE).head == 1


def test_a_share_that_is_no_longer_mounted_is_not_begun_anew(
    store: FileBackend, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(job)
    monkeypatch.setattr(store._store, "_device", -1)
    with pytest.raises(RendezvousConnectionError, match="another file system is mounted"):
        store.connect()
    assert not job.exists()


def test_a_directory_that_vanishes_ends_a_wait(store: FileBackend, job: Path) -> None:
    future = long_wait(store, Cursor(1), roster=False)
    (job / "ledger").rename(job / "elsewhere")
    with pytest.raises(RendezvousConnectionError, match="No such file or directory"):
        future.result(PATIENCE)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda store: store.enter("other", b""), id="enter"),
        pytest.param(lambda store: store.amend("node", 1, b""), id="amend"),
        pytest.param(lambda store: store.heartbeat("node", 1), id="heartbeat"),
        pytest.param(lambda store: store.remove("node"), id="remove"),
        pytest.param(lambda store: store.roster(), id="roster"),
        pytest.param(lambda store: store.append(FIRST, Link(2, "second"), b""), id="append"),
        pytest.param(lambda store: store.append(ORIGIN, FIRST, b""), id="append the first"),
        pytest.param(lambda store: store.read(1), id="read"),
        pytest.param(lambda store: store.wait(Cursor(), roster=True, timeout=0), id="wait"),
    ],
)
def test_without_its_directory_every_operation_says_so(
    store: FileBackend, job: Path, use: Callable[[FileBackend], object]
) -> None:
    shutil.rmtree(job)
    with pytest.raises(RendezvousConnectionError, match="No such file or directory") as caught:
        use(store)
    assert str(job) in caught.value.message
    assert "do not delete a running job's directory" in str(caught.value)


def test_a_closed_connection_is_of_no_more_use(store: FileBackend) -> None:
    store.close()
    with pytest.raises(RendezvousConnectionError, match="is closed"):
        store.roster()


def _foreign(path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """A directory of another user than that of the tests."""
    path.mkdir()
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o700])
def test_a_job_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    _foreign(tmp_path / "job", monkeypatch, mode)
    with pytest.raises(RendezvousStateError, match=r"belongs to another user(.|\n)*shared=true"):
        FileBackend.open(tmp_path, "job")


def test_a_job_directory_where_everybody_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job").chmod(0o1777)
    with pytest.raises(RendezvousStateError, match="can be written to by every user \\(mode 1777\\)"):
        FileBackend.open(tmp_path, "job")


def test_a_job_directory_that_users_share_on_purpose_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _foreign(tmp_path / "job", monkeypatch, 0o770)
    assert FileBackend.open(tmp_path, "job", shared=True).enter("node", b"") == 1


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to(path.parent), lambda path: path.write_bytes(b"")])
def test_a_job_directory_that_is_none_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "job")
    with pytest.raises(RendezvousStateError, match="is not a directory"):
        FileBackend.open(tmp_path, "job")


# The plugin ----------------------------------------------------------------------------------------------------------


def made(endpoint: str, **config: str) -> FileBackend:
    params = RendezvousParameters(
        backend="file", endpoint=endpoint, run_id="a/job", min_nodes=1, max_nodes=2, config=config
    )
    backend = plugin.elastic_make_rendezvous(params)
    assert isinstance(backend, FileBackend)
    return backend


def test_the_hooks_ask_for_a_directory() -> None:
    options = plugin.elastic_rendezvous_options()
    assert (options.endpoint, options.endpoint_required, options.single_node) == ("DIRECTORY", True, False)
    assert list(options.conf) == ["poll_interval", "shared"]


@pytest.mark.parametrize(
    "form", ["{}/new", "file://{}/new", "file://localhost{}/n%65w", "new", "./new/../new", "~/new"]
)
def test_every_form_of_the_endpoint_names_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made(form.format(tmp_path)).enter("node", b"value")
    assert [row.value for row in made(str(tmp_path / "new")).roster()] == [b"value"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a%2Fjob"]


@pytest.mark.parametrize(
    ("endpoint", "config", "message"),
    [
        ("", {}, "needs --rdzv_endpoint=DIRECTORY"),
        ("{}/missing/new", {}, "there is no directory '{}/missing'.\nCreate it"),
        ("/proc/new", {}, "no directory can be made in '/proc'"),
        ("{}/plain", {}, "'{}/plain' is not a directory"),
        ("{}/plain/new", {}, "'{}/plain/new' is not a directory"),
        ("file://host/dir", {}, "'file://host/dir' names no directory of this host"),
        ("file:dir", {}, "'file:dir' names no directory of this host"),
        ("{}", {"poll_interval": "0"}, "'0' is not a positive number of seconds"),
        ("{}", {"poll_interval": "-1"}, "'-1' is not a positive number of seconds"),
        ("{}", {"poll_interval": "nan"}, "'nan' is not a positive number of seconds"),
        ("{}", {"poll_interval": "inf"}, "'inf' is not a positive number of seconds"),
        ("{}", {"poll_interval": "fast"}, "'fast' is not a positive number of seconds"),
    ],
)
def test_wrong_usage_is_quoted(tmp_path: Path, endpoint: str, config: dict[str, str], message: str) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        made(endpoint.format(tmp_path), **config)
    assert message.format(tmp_path) in str(caught.value)


def test_a_listing_that_misses_a_row_while_it_is_renamed_is_not_believed(
    store: FileBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enter("node", b"value")
    before = store.wait(Cursor(), roster=True, timeout=0)
    store.amend("node", 1, b"another value")
    marks = store._marks()
    listings = iter([{}, marks, marks])
    monkeypatch.setattr(store, "_marks", lambda: next(listings))
    seen = store.wait(before, roster=True, timeout=0)
    monkeypatch.undo()
    store.remove("node")
    assert store.wait(seen, roster=True, timeout=0) != seen, "the removal would have been slept through"
