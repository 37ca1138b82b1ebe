"""A million calls leave nothing behind."""

import array
import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import rankpact
from ranks import results

CALLS = 1_000_000
PAGE = 4096
NOISE = 2 << 20
"""Bytes by which the memory of an interpreter may grow by itself; a leak of 8 bytes a call would be four times that."""


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


def growth(call: Callable[[], object], calls: int) -> int:
    for _ in range(calls // 100):
        call()
    gc.collect()
    before = resident()
    for _ in range(calls):
        call()
    gc.collect()
    return resident() - before


def refused(call: Callable[[], object]) -> Callable[[], None]:
    def refuse() -> None:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            call()

    return refuse


def test_calls_of_one_rank_leak_nothing(world: rankpact.World) -> None:
    group = world.group("g")
    row, wide, large = [3, 1, 4, 1, 5, 9, 2, 6], list(range(20)), [2**60 + slot for slot in range(8)]
    buffer, ints = array.array("q", row), array.array("i", [2**30] * 2)
    assert growth(lambda: group.all_reduce(row, "min", label="counts"), CALLS) < NOISE
    anything: Any = 1.5
    for call in (
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
        assert growth(call, CALLS // 50) < NOISE


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
        return growth(lambda: group.all_reduce([3, 1, 4, 1, 5, 9, 2, 6], "min", label="counts"), CALLS // 10)


def test_rounds_of_two_ranks_leak_nothing() -> None:
    assert max(results(rounds_of_two)) < NOISE
