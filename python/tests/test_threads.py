"""Threads: none starves while another one waits, and a group is used by one at a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import rankpact
from ranks import hold, results, say, started

PAUSE = 0.5
"""Far below what a wait takes here that keeps the interpreter lock; what is promised is 50 ms."""


@contextmanager
def heartbeat() -> Iterator[list[float]]:
    """A thread that ticks each 5 ms; the moments of its ticks."""
    ticks: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield ticks
    finally:
        over.set()
        thread.join()


def longest_pause(ticks: list[float]) -> float:
    return max(after - before for before, after in zip(ticks, ticks[1:], strict=False))


def beats_while_it_waits(path: Any) -> tuple[float, float]:
    import os

    rank = int(os.environ["RANKPACT_RANK"])
    with heartbeat() as ticks:
        if rank == 1:
            time.sleep(1)
        world = rankpact.connect()
        group = world.group("g", path=path)
        group.ready()
        for call in (group.barrier, lambda: group.all_reduce([1], "min"), lambda: group.all_reduce([1] * 1000, "min")):
            if rank == 1:
                time.sleep(1)
            call()
        # Rank 0 leaves first, and waits for the other one.
        if rank == 1:
            time.sleep(1)
        world.close()
        return longest_pause(ticks), ticks[-1] - ticks[0]


@pytest.mark.parametrize(("path", "wait"), [("auto", "auto"), ("auto", "spin"), ("auto", "park"), ("tcp", "auto")])
def test_a_thread_goes_on_while_another_one_waits(path: str, wait: str) -> None:
    with started(beats_while_it_waits, 2, path, RANKPACT_WAIT=wait) as ranks:
        for pause, lasted in ranks.results():
            assert pause < PAUSE and lasted > 2


def busy_while_rounds_go_on() -> tuple[int, int]:
    """Rounds one after the other, beside a thread that computes and never waits."""
    steps = [0]
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            steps[0] += 1

    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        thread = threading.Thread(target=compute)
        thread.start()
        until, rounds = time.monotonic() + 1, 0
        while group.all_reduce([int(time.monotonic() < until)], "min") == [1]:
            rounds += 1
        over.set()
        thread.join()
        return rounds, steps[0]


def test_rounds_and_a_busy_thread_both_go_on() -> None:
    for rounds, steps in results(busy_while_rounds_go_on):
        assert rounds > 10 and steps > 1000


def another_thread_has_to_run_first() -> list[int]:
    """The other rank comes when a thread here has worked for a while: which it cannot if this rank's wait stops it."""
    with rankpact.connect() as world:
        group, messages = world.group("g"), world.group("messages")
        group.barrier()
        if world.rank == 0:
            messages.recv(1)
            return group.all_reduce([1], "sum")

        def work() -> None:
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            messages.send(b"come", 0)

        thread = threading.Thread(target=work)
        thread.start()
        reduced = group.all_reduce([1], "sum")
        thread.join()
        return reduced


def test_a_wait_does_not_stop_the_thread_that_it_depends_on() -> None:
    assert results(another_thread_has_to_run_first) == [[2], [2]]


def used_by_two_threads() -> str:
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        if world.rank == 1:
            hold()
            group.barrier()
            return ""
        thread = threading.Thread(target=group.barrier)
        thread.start()
        time.sleep(0.3)
        refused = []
        for call in (group.barrier, lambda: group.all_reduce([1], "min"), group.close, world.close, lambda: group.path):
            try:
                call()
            except rankpact.UsageError as error:
                refused.append(str(error))
        assert not world.closed and len(refused) == 5
        say("refused")
        thread.join()
        return refused[0]


def test_a_group_is_used_by_one_thread_at_a_time() -> None:
    with started(used_by_two_threads) as ranks:
        ranks.heard(0)
        ranks.let_go(1)
        assert "barrier `barrier`, rank 0: g is in a call already" in ranks.result(0)
        ranks.result(1)


def a_group_for_each_thread() -> list[int]:
    with rankpact.connect() as world:
        totals = [0] * 4

        def rounds(at: int) -> None:
            group = world.group(f"g{at}")
            for step in range(500):
                totals[at] += group.all_reduce([step + world.rank], "max")[0]

        threads = [threading.Thread(target=rounds, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return totals


def test_each_thread_may_have_a_group_of_its_own() -> None:
    expected = sum(step + 1 for step in range(500))
    assert results(a_group_for_each_thread) == [[expected] * 4] * 2


def ends_beside_a_daemon(wakes: bool) -> None:
    world = rankpact.connect()
    group, other = world.group("g"), world.group("other")
    group.barrier()
    other.barrier()
    if world.rank == 0:
        threading.Thread(target=group.barrier, daemon=True).start()
        time.sleep(0.3)
    say("ready")
    hold()
    if world.rank == 1 and wakes:
        group.barrier()


@pytest.mark.parametrize("wakes", [False, True])
def test_a_program_ends_although_a_daemon_thread_waits(wakes: bool) -> None:
    with started(ends_beside_a_daemon, 2, wakes) as ranks:
        for rank in (0, 1):
            ranks.heard(rank)
        ranks.let_go(0)
        if wakes:
            # While the interpreter of rank 0 ends.
            ranks.let_go(1)
        ranks.result(0)
        if not wakes:
            ranks.let_go(1)
        ranks.result(1)
