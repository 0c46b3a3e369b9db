"""Snapshots in memory files: whole ones are read, half-written ones are known."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elastic_core.errors import ResourceError
from elastic_torch.memory.buffers import HEADER_BYTES, PAGE, Buffer, available_memory
from elastic_torch.state.host_memory import pin
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.version import Stamp

STATE = {
    "weight": torch.arange(1000, dtype=torch.float32).view(10, 100).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
    "lr": 0.1,
}


def written(stamp: Stamp, state: Any = STATE) -> Buffer:
    said, tensors = take_apart(state)
    buffer = Buffer.create("test", tensors, 1000)
    assert buffer.write(stamp, said, tensors)
    return buffer


def content(buffer: Buffer) -> Any:
    found = buffer.read()
    assert found is not None
    return put_together(found.said, found.views.__getitem__)


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[k], other[k]) if torch.is_tensor(one[k]) else one[k] == other[k] for k in STATE)


def test_another_process_reads_what_was_written() -> None:
    buffer = written(Stamp(2, 7))
    other = Buffer(os.dup(buffer.fd))
    found = other.read()
    assert found is not None
    assert found.stamp == Stamp(2, 7)
    assert same(content(other), STATE)


def test_a_larger_state_does_not_fit_and_changes_nothing() -> None:
    buffer = written(Stamp(1, 1))
    said, tensors = take_apart({**STATE, "more": torch.zeros(100_000)})
    assert not buffer.write(Stamp(1, 2), said, tensors)
    said, tensors = take_apart({**STATE, "lr": "x" * 200_000})
    assert not buffer.write(Stamp(1, 2), said, tensors)
    assert same(content(buffer), STATE)


def test_it_is_written_again_with_other_shapes() -> None:
    buffer = written(Stamp(1, 1))
    said, tensors = take_apart({"weight": torch.ones(3, 3)})
    assert buffer.write(Stamp(1, 2), said, tensors)
    assert torch.equal(content(buffer)["weight"], torch.ones(3, 3))


@pytest.mark.parametrize(
    ("new", "copied"),
    [*((True, copied) for copied in range(3)), *((False, copied) for copied in range(4))],  # an empty one is not put
)
def test_a_snapshot_whose_writer_is_killed_is_none(new: bool, copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said, tensors = take_apart(STATE)
    buffer = Buffer.create("test", tensors, 1000) if new else written(Stamp(1, 1))
    pid = os.fork()
    if pid == 0:  # all of this ends with this process
        left = copied

        def dies(act: Callable[..., Any]) -> Callable[..., Any]:
            def acts(*args: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return act(*args, **options)

            return acts

        monkeypatch.setattr(torch.Tensor, "copy_", dies(torch.Tensor.copy_))
        monkeypatch.setattr(os, "pwrite", dies(os.pwrite))
        buffer.write(Stamp(1, 2), said, tensors)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert buffer.read() is None


def test_a_first_and_a_later_write_give_the_same_state() -> None:
    state: dict[str, Any] = {
        **STATE,
        "large": torch.arange(3_000_000),
        "flags": torch.tensor([True, False, True]),
        "narrow": torch.arange(20.0)[::2],
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
    }
    said, tensors = take_apart(state)
    buffer = Buffer.create("test", tensors, 1000)
    for step in (1, 2):
        assert buffer.write(Stamp(1, step), said, tensors)
        found = content(buffer)
        assert found.keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value


def test_a_slot_is_settled_while_it_is_written_to() -> None:
    said, tensors = take_apart({"w": torch.zeros(4_000_000)})
    buffer = Buffer.create("test", tensors, 1000)
    threads = [threading.Thread(target=buffer.settle) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(1, 5):
        tensors[0].fill_(step)
        assert buffer.write(Stamp(1, step), said, tensors)
    for thread in threads:
        thread.join()
    assert content(buffer)["w"].unique().tolist() == [4.0]


class Cudart:
    """A driver that pins, or refuses to; what it was asked."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert (address % PAGE, size % PAGE, flags) == (0, 0, 1)
        self.asked.append(("pin", address))
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        self.asked.append(("unpin", address))
        return 0


class OfGpu(torch.Tensor):
    """Says that it lies on a GPU, and is copied from there by what copies it from the host."""

    is_cuda = True
    is_cpu = False
    device = torch.device("cuda", 1)


@pytest.mark.parametrize("answer", [0, 1])
def test_a_slot_is_pinned_for_a_gpu_once_and_let_go_before_it_is_closed(
    answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudart = Cudart(answer)
    waited_for = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def synchronize(self) -> None:
            waited_for.append(self.device.index)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    buffer = written(Stamp(1, 1))
    assert cudart.asked == []
    for step in (2, 3):
        assert buffer.write(Stamp(1, step), {"tensor": 0}, [torch.full((3,), float(step)).as_subclass(OfGpu)])
        found = buffer.read()
        assert found is not None
        assert (found.stamp, found.views[0].tolist()) == (Stamp(1, step), [step] * 3)
    buffer.close()
    assert [what for what, _ in cudart.asked] == (["pin", "unpin"] if answer == 0 else ["pin"])
    assert {address for _, address in cudart.asked} == {buffer.bytes().data_ptr()}
    assert waited_for == [1, 1]


def test_memory_that_no_driver_pins_is_not_pinned() -> None:
    memory = written(Stamp(1, 1)).bytes()
    assert torch.cuda.is_available() or not pin(memory, torch.device("cuda", 0))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param((0, b"?"), id="magic"),
        pytest.param((8, b"\0"), id="phase"),
        pytest.param((16, b"\1"), id="where the text is"),
        pytest.param((24, b"\1"), id="its length"),
        pytest.param((32, b"\1\2\3"), id="its checksum"),
        pytest.param((0, bytes(PAGE)), id="never written"),
    ],
)
def test_a_damaged_header_is_no_snapshot(damage: tuple[int, bytes]) -> None:
    buffer = written(Stamp(1, 1))
    os.pwrite(buffer.fd, damage[1], damage[0])
    assert buffer.read() is None


def test_a_flipped_bit_in_the_text_is_noticed() -> None:
    buffer = written(Stamp(1, 1))
    _, _, start, length, _ = struct.unpack("<8sQQQQ", os.pread(buffer.fd, HEADER_BYTES, 0))
    for at in range(start, start + length, 7):
        [byte] = os.pread(buffer.fd, 1, at)
        os.pwrite(buffer.fd, bytes([byte ^ 1]), at)
        assert buffer.read() is None
        os.pwrite(buffer.fd, bytes([byte]), at)
    assert same(content(buffer), STATE)


def test_a_snapshot_is_brought_to_another_slot() -> None:
    buffer = written(Stamp(3, 9))
    other = Buffer.sized("other", buffer.used())
    other.begin()
    other.bytes()[HEADER_BYTES : buffer.used()].copy_(buffer.bytes()[HEADER_BYTES : buffer.used()])
    assert other.read() is None
    other.finish(buffer.header(), Stamp(3, 9))
    assert other.stamp == Stamp(3, 9)
    assert same(content(other), STATE)


def test_too_little_memory_is_said() -> None:
    with pytest.raises(ResourceError, match=r"^There is no memory for a snapshot of \d+ MiB: \d+ MiB are available"):
        Buffer.sized("test", 2 * available_memory())


def test_no_process_can_shrink_a_buffer_under_a_reader() -> None:
    buffer = written(Stamp(1, 1))
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 0)


def test_its_views_last_as_long_as_they_are_used() -> None:
    buffer = written(Stamp(1, 1))
    found = content(buffer)
    buffer.close()
    del buffer
    assert same(found, STATE)
