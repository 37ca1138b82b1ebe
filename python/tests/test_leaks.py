"""Many calls leave nothing behind."""

import array
import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import rankpact
from ranks import results

PAGE = 4096
NOISE = 8 << 20
"""Bytes by which the memory of an interpreter may grow by itself, by huge pages too; a leak of 16 bytes a call is twice
that in a million calls."""


class Malloc(ctypes.Structure):
    """What mallinfo2 of the C library tells."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks mapped u f used free keep".split()]


C: Any = ctypes.CDLL(None)
needs_mallinfo = pytest.mark.skipif(not hasattr(C, "mallinfo2"), reason="needs glibc 2.33 or later")


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


def allocated() -> int:
    """Bytes that are allocated, by Rust too; of Python's blocks at least 16 each. The least leak of a call is 16."""
    C.mallinfo2.restype = Malloc
    malloc = C.mallinfo2()
    return int(malloc.used + malloc.mapped) + 16 * sys.getallocatedblocks()


def growth(of: Callable[[], int], call: Callable[[], object], calls: int) -> int:
    for _ in range(calls // 10):
        call()
    gc.collect()
    before = of()
    for _ in range(calls):
        call()
    gc.collect()
    return of() - before


def refused(call: Callable[[], object]) -> Callable[[], None]:
    def refuse() -> None:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            call()

    return refuse


def test_a_million_calls_take_no_memory(world: rankpact.World) -> None:
    group = world.group("g")
    row = [3, 1, 4, 1, 5, 9, 2, 6]
    assert growth(resident, lambda: group.all_reduce(row, "min", label="counts"), 1_000_000) < NOISE


@needs_mallinfo
def test_calls_of_one_rank_leak_nothing(world: rankpact.World) -> None:
    group = world.group("g")
    row, wide, large = [3, 1, 4, 1, 5, 9, 2, 6], list(range(20)), [2**60 + slot for slot in range(8)]
    buffer, ints = array.array("q", row), array.array("i", [2**30] * 2)
    anything: Any = 1.5
    for call in (
        lambda: group.all_reduce(row, "min", label="counts"),
        lambda: group.all_reduce(large, "max"),
        lambda: group.all_reduce(wide, ["sum"] * 20),
        lambda: group.all_reduce_(buffer, "max"),
        lambda: group.all_reduce_(ints, "max"),
        lambda: group.start_all_reduce(row, "min").finish(),
        lambda: group.start_all_reduce(row, "min"),
        lambda: group.broadcast(b"some bytes"),
        lambda: group.broadcast_object(row),
        lambda: group.all_gather(row),
        lambda: group.all_gather_object(row),
        lambda: group.barrier(),
        lambda: (group.round, group.path, group.path_reason, group.ranks, repr(group)),
        refused(lambda: group.all_reduce([1, anything], "min")),
        refused(lambda: group.all_reduce([1, 2**64], "min")),
        refused(lambda: group.all_reduce(row, ["min"])),
        refused(lambda: group.all_reduce_(b"12345678", "min")),
        refused(lambda: group.all_reduce_([1], "min")),
        refused(lambda: group.recv(7)),
        lambda: world.group("h"),
    ):
        assert growth(allocated, call, 5000) < 5000


def test_calls_keep_no_arguments(world: rankpact.World) -> None:
    group = world.group("g")
    values, label, op, buffer = [10**6, 10**7], "a label " * 2, ["min", "max"], array.array("q", [1, 2])
    kept = (values, values[0], label, op, buffer, group)
    before = [sys.getrefcount(thing) for thing in kept]
    for _ in range(1000):
        group.all_reduce(values, op, label=label)
        group.start_all_reduce(values, "min", label=label)
        group.all_reduce_(buffer, op, label=label)
        with pytest.raises(ValueError):
            group.all_reduce(values, ["min"], label=label)
    assert [sys.getrefcount(thing) for thing in kept] == before
    buffer.append(3)


def rounds_of_two() -> int:
    with rankpact.connect() as world:
        group = world.group("g")
        row = [3, 1, 4, 1, 5, 9, 2, 6]
        return growth(allocated, lambda: group.all_reduce(row, "min", label="counts"), 2000)


@needs_mallinfo
def test_rounds_of_two_ranks_leak_nothing() -> None:
    assert max(results(rounds_of_two)) < 2000 * 8
