"""Buffers that are reduced in place."""

import array
import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rankpact
from ranks import hold, in_a_call, results, say, started

LONG, INT, FLAG = 2**62, 2**31 - 1, True


def kinds_of_buffers() -> dict[str, Callable[[list[int]], Any]]:
    def tensor(values: list[int]) -> Any:
        return Tensor(np.array(values, dtype=np.int64))

    return {
        "int64": lambda values: np.array(values, dtype=np.int64),
        "longlong": lambda values: np.array(values, dtype=np.longlong),
        "int32": lambda values: np.array(values, dtype=np.int32),
        "array q": lambda values: array.array("q", values),
        "array l": lambda values: array.array("l", values),
        "array i": lambda values: array.array("i", values),
        "memoryview": lambda values: memoryview(bytearray(np.array(values, dtype=np.int64).tobytes())).cast("q"),
        "part": lambda values: np.array([7, *values, 7], dtype=np.int64)[1:-1],
        "tensor": tensor,
    }


class Tensor:
    """Stands for a tensor of torch, which has no buffer but shares its memory with an array."""

    def __init__(self, array: Any, device: str = "cpu") -> None:
        self.array = array
        self.device = device

    def numpy(self) -> Any:
        if self.device != "cpu":
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.array

    def __iter__(self) -> Any:
        return iter(self.array)


def with_tensors() -> None:
    torch: Any = types.ModuleType("torch")
    torch.Tensor = Tensor
    sys.modules["torch"] = torch


def reduce_in_place() -> None:
    with_tensors()
    with rankpact.connect() as world:
        group = world.group("g")
        rank = world.rank
        for name, make in kinds_of_buffers().items():
            for width in (1, 8, 9, 200):
                buffer = make([slot * (rank + 1) for slot in range(width)])
                assert group.all_reduce_(buffer, "max", label="vote") is None
                assert list(buffer) == [2 * slot for slot in range(width)], name
                group.all_reduce_(buffer, ["sum"] * width)
                assert list(buffer) == [4 * slot for slot in range(width)], name
        flags = np.array([rank == 0, True, False])
        group.all_reduce_(flags, "and")
        assert flags.tolist() == [False, True, False]
        flags = np.array([[rank == 0], [False]])
        group.all_reduce_(flags, "or")
        assert flags.tolist() == [[True], [False]] and flags.dtype == bool
        square = np.arange(6).reshape(2, 3) * (1 - rank)
        group.all_reduce_(square, "min")
        assert square.tolist() == [[0, 0, 0], [0, 0, 0]]
        nothing = np.zeros(0, dtype=np.int64)
        group.all_reduce_(nothing, "min")


def test_buffers_of_each_kind_are_reduced_in_place() -> None:
    results(reduce_in_place)


def overflow_in_place() -> list[tuple[str, int, list[int]]]:
    with rankpact.connect() as world:
        group = world.group("g")
        told = []
        for kind, most in ((np.int64, 2**62), (np.int32, 2**30), (np.bool_, True)):
            buffer = np.array([0, most, 0, most], dtype=kind)
            try:
                group.all_reduce_(buffer, "sum", label="sums")
            except OverflowError as error:
                assert isinstance(error, rankpact.Overflow)
                told.append((str(error).partition(", rank ")[0], error.slot, buffer.tolist()))
            # Nothing has failed.
            assert group.all_reduce([1], "sum") == [2]
        return told


def test_a_result_that_does_not_fit_is_told_on_every_rank_and_changes_nothing() -> None:
    told = results(overflow_in_place)
    assert told[0] == told[1]
    assert [slot for _, slot, _ in told[0]] == [1, 1, 1]
    assert [buffer for _, _, buffer in told[0]] == [[0, 2**62] * 2, [0, 2**30] * 2, [False, True] * 2]
    assert told[0][1][0] == "group g, round 3, all_reduce `sums`"


REFUSED: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("bytes", lambda: b"12345678", ValueError, "read-only"),
    ("frozen", lambda: frozen(np.zeros(4, dtype=np.int64)), ValueError, "read-only"),
    ("every other", lambda: np.zeros(8, dtype=np.int64)[::2], ValueError, "not contiguous"),
    ("backwards", lambda: np.zeros(8, dtype=np.int64)[::-1], ValueError, "not contiguous"),
    ("transposed", lambda: np.zeros((2, 3), dtype=np.int64).T, ValueError, "not contiguous"),
    ("no dimension", lambda: np.array(5), ValueError, "cannot be used"),
    ("bytearray", lambda: bytearray(8), TypeError, "elements of the buffer are `B`"),
    ("float64", lambda: np.zeros(4), TypeError, "elements of the buffer are `d`"),
    ("uint64", lambda: np.zeros(4, dtype=np.uint64), TypeError, "elements of the buffer are `L`"),
    ("int16", lambda: np.zeros(4, dtype=np.int16), TypeError, "elements of the buffer are `h`"),
    ("int8", lambda: array.array("b", [1]), TypeError, "elements of the buffer are `b`"),
    ("other byte order", lambda: np.zeros(4, dtype=">i8"), TypeError, "elements of the buffer are `>q`"),
    ("other byte order, 32 bits", lambda: np.zeros(4, dtype=">i4"), TypeError, "elements of the buffer are `>i`"),
    ("foreign", lambda: (ctypes.c_int64 * 4)(), ValueError, "cannot be used"),
    ("record", lambda: np.zeros(4, dtype=[("a", "i8")]), TypeError, "elements of the buffer are `T"),
    ("unaligned", lambda: np.zeros(17, dtype=np.int8)[1:].view(np.int64), ValueError, "aligned"),
    ("list", lambda: [1, 2], TypeError, r"not list: all_reduce\(\) takes lists"),
    ("none", lambda: None, TypeError, "not NoneType"),
    ("on a device", lambda: Tensor(np.zeros(4, dtype=np.int64), "cuda:0"), TypeError, "can't convert cuda:0 device type tensor"),
    ("float tensor", lambda: Tensor(np.zeros(4)), TypeError, "elements of the buffer are `d`"),
]


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("make", "error", "text"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_buffers_that_cannot_be_reduced(
    world: rankpact.World, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    torch: Any = types.ModuleType("torch")
    torch.Tensor = Tensor
    monkeypatch.setitem(sys.modules, "torch", torch)
    group = world.group("g")
    with pytest.raises(error, match=text):
        group.all_reduce_(make(), "min")
    assert group.round == 0
    assert group.all_reduce([3], "min") == [3]


def test_an_operation_that_is_none_changes_no_buffer(world: rankpact.World) -> None:
    buffer = np.arange(3)
    with pytest.raises(ValueError, match="`average`"):
        world.group("g").all_reduce_(buffer, "average")
    assert buffer.tolist() == [0, 1, 2]


def resize_meanwhile() -> list[int]:
    import threading

    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        buffer = array.array("q", [world.rank])
        if world.rank == 1:
            hold()
            group.all_reduce_(buffer, "max")
            return list(buffer)
        reducing = threading.Thread(target=group.all_reduce_, args=(buffer, "max"))
        reducing.start()
        in_a_call(group)
        with pytest.raises(BufferError):
            buffer.append(7)
        say("refused")
        reducing.join()
        buffer.append(8)
        return list(buffer)


def test_a_buffer_that_is_being_reduced_cannot_be_resized() -> None:
    with started(resize_meanwhile) as ranks:
        ranks.heard(0)
        ranks.let_go(1)
        assert ranks.results() == [[1, 8], [1]]
