"""Ctrl-C and other signals: handlers run while a rank waits, and what they raise ends the job on all ranks."""

import os
import signal
import threading
import time
from typing import Any

import pytest
import rankpact
from ranks import TWO_HOSTS, hold, in_a_call, needs_mounts, say, started

SOON = 5.0
"""Long before any deadline, however busy the machine is; what is promised is 0.2 s."""

WAITS = ["join", "open", "row", "tcp", "wide", "started", "broadcast", "recv", "relay", "barrier"]


def wait_in_vain(world: rankpact.World, wait: str) -> Any:
    """A call that waits for the other rank."""
    group = world.group("g", path="tcp" if wait == "tcp" else "auto")
    if wait == "open":
        return group.ready
    if wait == "relay":
        upstream, downstream = (None, 1) if world.rank == 0 else (0, None)
        relay = world.relay("r", upstream=upstream, downstream=downstream)
        relay.ready()
        return relay.next if world.rank else lambda: (relay.post([1]), relay.finish())
    group.barrier()
    if wait == "recv":
        return lambda: group.recv(1 - group.rank)
    if wait == "started":
        return lambda: group.start_all_reduce([1], "min").finish()
    return {
        "row": lambda: group.all_reduce([1], "min"),
        "tcp": lambda: group.all_reduce([1], "min"),
        "wide": lambda: group.all_reduce([1] * 5000, "min"),
        "broadcast": lambda: group.broadcast(bytes(10_000)),
        "barrier": group.barrier,
    }[wait]


def is_interrupted(wait: str) -> tuple[str, float]:
    """Rank 0 is interrupted while it waits alone; rank 1 comes after that. What was raised, and when."""
    raised: list[tuple[str, float]] = []

    def call(body: Any) -> Any:
        try:
            return body()
        except (KeyboardInterrupt, rankpact.Error) as error:
            raised.append((f"{type(error).__name__}: {error}", time.monotonic()))
            say("raised")
            raise

    try:
        if wait == "join":
            if os.environ["RANKPACT_RANK"] == "1":
                hold()
            say("waits")
            call(rankpact.connect)
        with rankpact.connect() as world:
            waiting = wait_in_vain(world, wait)
            say("waits")
            if world.rank == 1:
                hold()
            call(waiting)
            # Of what rank 0 had sent before, one call may still have been made good.
            call(waiting)
    except (KeyboardInterrupt, rankpact.Error):
        pass
    return raised[0]


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_soon_and_all_are_told(wait: str) -> None:
    with started(is_interrupted, 2, wait) as ranks:
        if wait != "join":
            ranks.heard(1)
        ranks.heard(0)
        ranks.asleep(0)
        at = time.monotonic()
        ranks.signal(0, signal.SIGINT)
        ranks.heard(0)
        if wait != "join":
            ranks.let_go(1)
            told, _ = ranks.result(1)
            assert told.startswith("Aborted: ") and told.endswith("rank 0 aborted: KeyboardInterrupt"), told
        raised, when = ranks.result(0)
        assert raised == "KeyboardInterrupt: " and when - at < SOON


def is_interrupted_on_one_host() -> tuple[str, float]:
    """Rank 2, alone on its host, does not come. Rank 0, which leads the other host, is interrupted."""
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        say("waits")
        if world.rank == 2:
            hold()
        try:
            group.all_reduce([1], "min")
            # Of what the other host had sent before, rank 2 may still have made one round.
            group.all_reduce([1], "min")
        except KeyboardInterrupt:
            say("raised")
            return "KeyboardInterrupt", time.monotonic()
        except rankpact.Aborted as error:
            return error.reason, time.monotonic()
    return "nothing", 0.0


@needs_mounts
@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_a_wait_for_another_host(rank: int) -> None:
    with started(is_interrupted_on_one_host, 3, wrapper=TWO_HOSTS) as ranks:
        for each in range(3):
            ranks.heard(each)
        ranks.asleep(rank)
        at = time.monotonic()
        ranks.signal(rank, signal.SIGINT)
        ranks.heard(rank)
        ranks.let_go(2)
        told = [reason for reason, _ in ranks.results()]
        assert told == ["KeyboardInterrupt"] * 3
        assert ranks.result(rank)[1] - at < SOON


def has_a_handler() -> tuple[list[float], list[int]]:
    ran: list[float] = []

    def handler(*_: object) -> None:
        ran.append(time.monotonic())
        say("ran")

    signal.signal(signal.SIGTERM, handler)
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        say("ready")
        if world.rank == 1:
            hold()
        return ran, group.all_reduce([world.rank], "max")


def test_a_handler_that_returns_runs_soon_and_disturbs_no_round() -> None:
    with started(has_a_handler) as ranks:
        ranks.heard(0)
        ranks.heard(1)
        sent = []
        for _ in range(5):
            ranks.asleep(0)
            sent.append(time.monotonic())
            ranks.signal(0, signal.SIGTERM)
            # Two of a kind that are both due are one.
            ranks.heard(0)
        ranks.let_go(1)
        (ran, reduced), _ = ranks.results()
        assert reduced == [1] and len(ran) == 5
        late = [after - before for before, after in zip(sent, ran, strict=True)]
        assert max(late) < SOON, late


def raises_in_a_handler() -> str:
    def handler(*_: object) -> None:
        raise ValueError("out of patience")

    signal.signal(signal.SIGALRM, handler)
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        say("waits")
        if world.rank == 1:
            hold()
        try:
            group.barrier()
        except ValueError as error:
            say("raised")
            return repr(error)
        except rankpact.Aborted as error:
            return error.reason
        return "nothing"


def test_whatever_a_handler_raises_comes_out_of_the_call() -> None:
    with started(raises_in_a_handler) as ranks:
        ranks.heard(0)
        ranks.asleep(0)
        ranks.signal(0, signal.SIGALRM)
        ranks.heard(0)
        ranks.let_go(1)
        assert ranks.results() == ["ValueError('out of patience')", "ValueError: out of patience"]


def waits_in_another_thread() -> list[str]:
    seen: list[str] = []
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        if world.rank == 1:
            hold()

        def call() -> None:
            try:
                group.all_reduce([1], "min")
            except rankpact.Error as error:
                seen.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        try:
            if world.rank == 0:
                in_a_call(group)
                say("waits")
                while True:
                    time.sleep(0.01)
        except KeyboardInterrupt:
            seen.append("KeyboardInterrupt")
            world.abort("interrupted")
            say("aborted")
        thread.join()
    return seen


def test_ctrl_c_reaches_the_main_thread_while_another_one_waits() -> None:
    with started(waits_in_another_thread) as ranks:
        ranks.heard(0)
        at = time.monotonic()
        ranks.signal(0, signal.SIGINT)
        ranks.heard(0)
        assert time.monotonic() - at < SOON
        ranks.let_go(1)
        first, *told = ranks.result(0)
        assert first == "KeyboardInterrupt"
        assert all("rank 0 aborted: interrupted" in error for error in told + ranks.result(1)) and told


def is_waited_for_in_a_block() -> None:
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        say("waits")
        group.recv(1 - world.rank)


def test_ctrl_c_that_nobody_catches_ends_the_job() -> None:
    with started(is_waited_for_in_a_block) as ranks:
        for rank in (0, 1):
            ranks.heard(rank)
        ranks.asleep(0)
        ranks.signal(0, signal.SIGINT)
        assert ranks.code(0) in (-signal.SIGINT, 130, 1) and ranks.code(1) == 1
        assert "KeyboardInterrupt" in ranks.errors(0)
        assert "rankpact.errors.Aborted: " in ranks.errors(1)
        assert "rank 0 aborted: KeyboardInterrupt" in ranks.errors(1)


def handler_calls_the_group() -> str:
    told = []
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()

        def handler(*_: object) -> None:
            try:
                group.all_reduce([1], "min")
            except rankpact.UsageError as error:
                told.append(str(error))
            say("ran")

        signal.signal(signal.SIGALRM, handler)
        if world.rank == 1:
            hold()
        say("waits")
        group.barrier()
    return told[0] if told else ""


def test_a_handler_cannot_call_the_group_that_it_interrupts() -> None:
    with started(handler_calls_the_group) as ranks:
        ranks.heard(0)
        ranks.asleep(0)
        ranks.signal(0, signal.SIGALRM)
        ranks.heard(0)
        ranks.let_go(1)
        told, _ = ranks.results()
        assert "g is in a call already" in told
