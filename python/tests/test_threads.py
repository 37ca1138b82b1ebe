"""Threads: none starves while another one waits, and a group is used by one at a time."""

import os
import threading
import time
from typing import Any

import pytest
import rankpact
from ranks import hold, in_a_call, results, say, started

BEATS = ["beats"] * 3


def beats_while_it_waits(path: Any) -> None:
    """Rank 1 comes to each call when a thread of rank 0, which waits there, has gone on for a while."""
    rank = int(os.environ["RANKPACT_RANK"])
    waiting = threading.Semaphore(0)

    def beat() -> None:
        while waiting.acquire():
            for line in BEATS:
                time.sleep(0.1)
                say(line)

    def come() -> None:
        if rank == 1:
            hold()
        else:
            waiting.release()

    threading.Thread(target=beat, daemon=True).start()
    come()
    world = rankpact.connect()
    group = world.group("g", path=path)
    for call in (
        group.ready,
        group.barrier,
        lambda: group.all_reduce([1], "min"),
        lambda: group.all_reduce([1] * 1000, "min"),
        world.close,
    ):
        come()
        call()
    say("closed")


@pytest.mark.parametrize(("path", "wait"), [("auto", "auto"), ("auto", "spin"), ("auto", "park"), ("tcp", "auto")])
def test_a_thread_goes_on_while_another_one_waits(path: str, wait: str) -> None:
    with started(beats_while_it_waits, 2, path, RANKPACT_WAIT=wait) as ranks:
        for _ in range(5):
            assert [ranks.heard(0) for _ in BEATS] == BEATS
            ranks.let_go(1)
        # Rank 0 leaves first, and waits some seconds for the other one.
        assert [ranks.heard(0) for _ in [*BEATS, "closed"]] == [*BEATS, "closed"]
        ranks.let_go(1)
        ranks.results()


def busy_while_rounds_go_on() -> None:
    """Rounds one after the other, beside a thread that computes and never waits, until both have done their part."""
    steps = 0
    over = threading.Event()

    def compute() -> None:
        nonlocal steps
        while not over.is_set():
            steps += 1

    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        thread = threading.Thread(target=compute)
        thread.start()
        while group.all_reduce([int(group.round < 50 or steps < 100_000)], "max") == [1]:
            pass
        over.set()
        thread.join()


def test_rounds_and_a_busy_thread_both_go_on() -> None:
    results(busy_while_rounds_go_on)


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
            group.all_reduce([1], "min")
            return ""
        thread = threading.Thread(target=group.all_reduce, args=([1], "min"))
        thread.start()
        in_a_call(group)
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
        threading.Thread(target=group.all_reduce, args=([1], "min"), daemon=True).start()
        in_a_call(group)
    say("ready")
    hold()
    if world.rank == 1 and wakes:
        group.all_reduce([1], "min")


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
