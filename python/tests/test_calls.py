"""Every call, against values that are computed here."""

import functools
import operator
import random
from typing import Any

import pytest
import rankpact
from ranks import TWO_HOSTS, needs_mounts, results, started

LEAST, MOST = -(2**63), 2**63 - 1
FOLDS = {"min": min, "max": max, "sum": operator.add, "or": operator.or_, "and": operator.and_}
WIDTHS = [0, 1, 7, 8, 9, 100, 3000]


def values(rank: int, width: int, small: bool) -> list[int]:
    source = random.Random(f"{rank} {width} {small}")
    limit = 2**55 if small else 2**61
    row = [source.randrange(-limit, limit) for _ in range(width)]
    if width and not small:
        row[0] = [LEAST, MOST, 0][rank % 3] // 4
    return row


def folded(op: str, rows: list[list[int]]) -> list[int]:
    return [functools.reduce(FOLDS[op], slots) for slots in zip(*rows, strict=True)]


def reduce_everything(path: Any) -> str | None:
    with rankpact.connect() as world:
        group = world.group("g", path=path)
        for width in WIDTHS:
            for small in (True, False):
                for op in FOLDS:
                    rows = [values(rank, width, small) for rank in range(world.size)]
                    mine = rows[world.rank]
                    kept = list(mine)
                    got = group.all_reduce(tuple(mine) if small else mine, op, label=f"{op} {width}")
                    assert got == folded(op, rows), (op, width)
                    assert mine == kept
        extremes = [[LEAST, MOST, -1], [MOST, LEAST, 1], [0, 0, 0]][world.rank]
        rows = [[LEAST, MOST, -1], [MOST, LEAST, 1], [0, 0, 0]][: world.size]
        for op in ("min", "max", "or", "and"):
            assert group.all_reduce(extremes, op) == folded(op, rows)
        return group.path


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("path", ["auto", "tcp"])
def test_reductions_are_those_of_all_ranks(path: str, count: int) -> None:
    expected = "alone" if count == 1 else {"auto": "table", "tcp": "tcp"}[path]
    assert results(reduce_everything, count, path) == [expected] * count


def reduce_each() -> None:
    with rankpact.connect() as world:
        group = world.group("g")
        rank = world.rank
        got = group.all_reduce([rank, rank, rank, 1 << rank], ["min", "max", "sum", "or"])
        assert got == [0, 2, 3, 7]
        assert group.all_reduce([rank, rank], (rankpact.Op.MAX, "min"), label="both") == [2, 0]
        wide = group.all_reduce([rank] * 20, ["sum", "min"] * 10)
        assert wide == [3, 0] * 10
        assert group.contributions(0) == [0, 1, 2]
        assert group.all_reduce([rank + 5], rankpact.Op.SUM) == [18]
        assert group.contributions(0) == [5, 6, 7]
        assert group.contributions(1) is None


def test_each_slot_may_have_an_operation_of_its_own() -> None:
    results(reduce_each, 3)


def reduce_in_two_phases(path: Any) -> None:
    with rankpact.connect() as world:
        group = world.group("g", path=path)
        rank = world.rank
        started = [group.start_all_reduce([rank + i, i], "sum") for i in range(4)]
        assert [handle.round for handle in started] == [1, 2, 3, 4]
        # Not in their order, and more than once.
        for at in (2, 0, 3, 1, 2):
            assert started[at].finish() == [1 + 2 * at, 2 * at]
        # A start matches a blocking call of the other rank, and more of them than can be in flight settle the oldest.
        if rank == 0:
            many = [group.start_all_reduce([i], "max") for i in range(10)]
            assert [handle.finish() for handle in many] == [[i + 1] for i in range(10)]
        else:
            assert [group.all_reduce([i + 1], "max") for i in range(10)] == [[i + 1] for i in range(10)]
        # One that nobody finishes is withdrawn nowhere.
        group.start_all_reduce([rank], "min")
        assert group.all_reduce([rank], "max") == [1]
        assert group.round == 16


@pytest.mark.parametrize("path", ["auto", "tcp"])
def test_a_reduction_can_be_started_and_finished_later(path: str) -> None:
    results(reduce_in_two_phases, 2, path)


def broadcast_everything() -> None:
    with rankpact.connect() as world:
        group = world.group("g")
        for root in range(world.size):
            for size in (0, 1, 72, 73, 100_000):
                data = random.Random(size).randbytes(size)
                for form in (bytes, bytearray, memoryview):
                    mine = form(data) if world.rank == root else None
                    got = group.broadcast(mine, root=root)
                    assert type(got) is bytes and got == data
            thing = {"root": root, "plan": [1, 2.5, None, "x"]}
            got = group.broadcast_object(thing if world.rank == root else None, root=root)
            assert got == thing and (got is thing) == (world.rank == root)
        assert group.broadcast(b"mine" if world.rank == 1 else b"not looked at", root=1) == b"mine"
        assert group.broadcast_object() is None


def test_a_broadcast_gives_all_what_the_root_has() -> None:
    results(broadcast_everything, 3)


def gather_everything() -> None:
    with rankpact.connect() as world:
        group = world.group("g")
        for width in (0, 1, 8, 9, 500):
            rows = [values(rank, width, False) for rank in range(world.size)]
            assert group.all_gather(rows[world.rank]) == rows
        data = [bytes([rank]) * rank * 1000 for rank in range(world.size)]
        assert group.all_gather_bytes(data[world.rank]) == data
        assert group.all_gather_bytes(bytearray(b"x")) == [b"x"] * world.size
        mine = ("rank", world.rank)
        all_of_them = group.all_gather_object(mine)
        assert all_of_them == [("rank", rank) for rank in range(world.size)]
        assert all_of_them[world.rank] is mine


def test_a_gather_gives_all_what_every_rank_has() -> None:
    results(gather_everything, 3)


def send_messages() -> None:
    with rankpact.connect() as world:
        group = world.group("g", ranks=[2, 0]) if world.rank != 1 else None
        if group is None:
            return
        other = 1 - group.rank
        large = bytes(range(256)) * 8000
        # Both send before they receive.
        for data in (b"", b"one", memoryview(b"two"), large):
            group.send(data, other, label="some")
        assert [group.recv(other, label="some") for _ in range(4)] == [b"", b"one", b"two", large]
        if group.rank == 0:
            group.send(b"request", to=1)
            assert group.recv(source=1) == b"answer to request"
        else:
            group.send(b"answer to " + group.recv(0), 0)
        assert group.round == 0


def test_messages_go_both_ways_between_two_ranks() -> None:
    results(send_messages, 3)


def call_over_two_hosts() -> str | None:
    with rankpact.connect() as world:
        group, rank = world.group("g"), world.rank
        assert group.all_reduce([rank, 5 - rank], "min") == [0, 3]
        assert group.all_reduce([rank] * 100, ["max", "sum"] * 50) == [2, 3] * 50
        assert group.start_all_reduce([rank], "max").finish() == [2]
        assert group.broadcast_object(("plan", rank), root=2) == ("plan", 2)
        assert group.all_gather([rank, rank]) == [[0, 0], [1, 1], [2, 2]]
        group.barrier()
        return group.path


@needs_mounts
def test_a_group_may_span_two_hosts() -> None:
    with started(call_over_two_hosts, 3, wrapper=TWO_HOSTS) as ranks:
        assert ranks.results() == ["hierarchical"] * 3


def look_at_a_group() -> None:
    with rankpact.connect() as world:
        assert repr(world) == f"<rankpact.World: rank {world.rank} of 3>"
        everybody = world.group("all")
        assert (everybody.name, everybody.rank, everybody.size) == ("all", world.rank, 3)
        assert everybody.ranks == (0, 1, 2) and everybody.round == 0
        assert everybody.path is None and everybody.path_reason is None
        everybody.ready()
        assert everybody.path == "table" and "proved" in (everybody.path_reason or "")
        everybody.barrier()
        everybody.barrier(label="again", timeout=20)
        assert everybody.round == 2
        assert repr(everybody) == f"<rankpact.Group all: rank {world.rank} of 3>"
        # Groups overlap, and their members may open them in any order.
        pairs = [world.group(f"pair {a}{b}", ranks=[b, a]) for a, b in ((0, 1), (1, 2), (0, 2)) if world.rank in (a, b)]
        for pair in pairs:
            assert pair.ranks[pair.rank] == world.rank and pair.ranks[0] > pair.ranks[1]
        started = [pair.start_all_reduce([world.rank], "sum") for pair in pairs if 0 in pair.ranks]
        started += [pair.start_all_reduce([world.rank], "sum") for pair in pairs if 0 not in pair.ranks]
        ordered = [pair for pair in pairs if 0 in pair.ranks] + [pair for pair in pairs if 0 not in pair.ranks]
        for pair, handle in zip(ordered, started, strict=True):
            assert handle.finish() == [sum(pair.ranks)]
        everybody.close()
        everybody.close()
        again = world.group("all")
        assert again.all_reduce([world.rank], "max") == [2]


def test_groups_know_who_they_are() -> None:
    results(look_at_a_group, 3)


def relay_vectors() -> list[list[int]]:
    with rankpact.connect() as world:
        rank, last = world.rank, world.size - 1
        relay = world.relay("stages", upstream=rank - 1 if rank else None, downstream=rank + 1 if rank < last else None)
        assert relay.name == "stages"
        relay.ready()
        seen = []
        for tick in range(50):
            vectors, size = relay.settle()
            assert vectors <= 16 and size % 8 == 0
            if rank == 0:
                relay.post([tick, -tick] * tick)
                seen.append([tick, -tick] * tick)
            else:
                seen.append(relay.next())
        relay.finish()
        return seen


def test_every_stage_of_a_relay_gets_what_the_first_one_decides() -> None:
    expected = [[tick, -tick] * tick for tick in range(50)]
    assert results(relay_vectors, 3) == [expected] * 3
