"""What cannot work is refused on the spot: nothing is sent, and the next call works."""

import math
from typing import Any

import pytest
import rankpact


@pytest.fixture
def group(world: rankpact.World) -> rankpact.Group:
    group = world.group("g")
    group.barrier()
    return group


class Index:
    """What counts as an int."""

    def __index__(self) -> int:
        return 5


class Broken:
    def __index__(self) -> int:
        raise RuntimeError("broken")


REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    ([1.5], "min", TypeError, r"values\[0\] is an int, not float"),
    ([1, "2"], "min", TypeError, r"values\[1\] is an int, not str"),
    ([1, None], "min", TypeError, r"values\[1\] is an int, not NoneType"),
    ([2**63], "min", OverflowError, r"values\[0\] does not fit 64 signed bits"),
    ([0, -(2**63) - 1], "min", OverflowError, r"values\[1\] does not fit 64 signed bits"),
    ([Broken()], "min", RuntimeError, "broken"),
    (range(3), "min", TypeError, "a list or tuple of ints, not range"),
    ({1, 2}, "min", TypeError, "a list or tuple of ints, not set"),
    (b"12345678", "min", TypeError, "a list or tuple of ints, not bytes"),
    (7, "min", TypeError, "a list or tuple of ints, not int"),
    ([1], "MIN", ValueError, "`MIN` is no operation: min, max, sum, or, and"),
    ([1], "prod", ValueError, "`prod` is no operation"),
    ([1], 3, TypeError, "an operation is a string"),
    ([1], [3], TypeError, "int"),
    ([1], ["average"], ValueError, "`average` is no operation"),
    ([1], ["min", "max"], rankpact.UsageError, "2 operations for 1 slots"),
    ([1], [], rankpact.UsageError, "0 operations for 1 slots"),
]


@pytest.mark.parametrize(("values", "op", "error", "text"), REFUSED)
def test_values_and_operations_that_are_none(
    group: rankpact.Group, values: Any, op: Any, error: type[Exception], text: str
) -> None:
    for call in (group.all_reduce, group.start_all_reduce):
        with pytest.raises(error, match=text):
            call(values, op)
    assert group.round == 1
    assert group.all_reduce([3], "min") == [3]


def test_whatever_is_an_int_can_be_reduced(group: rankpact.Group) -> None:
    values: Any = [True, Index(), 2**63 - 1, -(2**63)]
    assert group.all_reduce(values, "min") == [1, 5, 2**63 - 1, -(2**63)]
    assert group.all_reduce((), "min") == []


def test_a_row_that_is_too_long_to_be_finished_later(group: rankpact.Group) -> None:
    with pytest.raises(ValueError, match="9 slots: at most 8 can be started"):
        group.start_all_reduce([0] * 9, "min")
    assert group.round == 1


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, 1e30])
def test_deadlines_that_are_none(group: rankpact.Group, world: rankpact.World, timeout: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        group.all_reduce([1], "min", timeout=timeout)
    with pytest.raises(ValueError, match="seconds"):
        group.barrier(timeout=timeout)
    with pytest.raises(ValueError, match="seconds"):
        world.group("h", timeout=timeout)
    assert group.round == 1


def test_arguments_of_another_type(group: rankpact.Group, world: rankpact.World) -> None:
    anything: Any = object()
    for refused in (
        lambda: group.all_reduce([1], "min", label=anything),
        lambda: group.all_reduce([1], "min", timeout=anything),
        lambda: group.all_reduce([1], "min", "counts"),
        lambda: group.broadcast(anything),
        lambda: group.broadcast(),
        lambda: group.broadcast("text"),
        lambda: group.send("text", 0),
        lambda: group.all_gather_bytes([1]),
        lambda: group.all_gather(anything),
        lambda: world.group(anything),
        lambda: world.group("h", ranks=anything),
        lambda: world.abort(anything),
    ):
        with pytest.raises(TypeError):
            refused()
    assert group.round == 1


def test_groups_and_peers_that_cannot_be(group: rankpact.Group, world: rankpact.World) -> None:
    for refused in (
        lambda: world.group(""),
        lambda: world.group("a/b"),
        lambda: world.group("h", ranks=[1]),
        lambda: world.group("h", ranks=[0, 0]),
        lambda: world.group("h", ranks=[]),
        lambda: world.group("h", path="smoke signals"),
        lambda: world.relay("r", upstream=0),
        lambda: group.send(b"", 1),
        lambda: group.recv(0),
        lambda: group.broadcast(b"", root=1),
    ):
        with pytest.raises(ValueError):
            refused()
    assert group.all_reduce([3], "min") == [3]


def test_a_world_cannot_be_joined_half_explicitly() -> None:
    for arguments in ({"rank": 0}, {"size": 2}, {"rendezvous": "file:///tmp"}, {"rank": 0, "size": 2}):
        with pytest.raises(TypeError, match="given together"):
            rankpact.connect(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rendezvous": "here"},
        {"timeout": -1},
        {"path": "smoke signals"},
        {"wait": "never"},
        {"rank": 1},
        {"interface": "^lo,docker"},
    ],
)
def test_settings_that_are_none(tmp_path: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(rankpact.UsageError):
        rankpact.connect(**{"rank": 0, "size": 1, "rendezvous": f"file://{tmp_path}"} | arguments)
