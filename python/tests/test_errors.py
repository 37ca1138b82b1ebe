"""Every error: its class, its fields, and what its text says."""

import inspect
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import rankpact
from rankpact import errors
from ranks import hold, needs_mounts, results, say, started, torchrun, with_mounts


def caught(call: Any) -> rankpact.Error:
    try:
        call()
    except rankpact.Error as error:
        # It survives the way to another process.
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert again.__dict__.keys() == error.__dict__.keys()
        return error
    raise AssertionError("no error")


def ends_alone(path: Any) -> tuple[rankpact.Error, rankpact.Error, float]:
    world = rankpact.connect()
    group = world.group("g", path=path)
    group.all_reduce([1], "min", label="together")
    say("together")
    if world.rank == 1:
        hold()
    began = time.monotonic()
    error = caught(lambda: group.all_reduce([1], "min", label="alone", timeout=20))
    took = time.monotonic() - began
    return error, caught(lambda: group.barrier(label="after")), took


@pytest.mark.parametrize("path", ["table", "tcp"])
def test_a_killed_rank_is_named_long_before_the_deadline(path: str) -> None:
    with started(ends_alone, 3, path) as ranks:
        for rank in range(3):
            ranks.heard(rank)
        ranks.signal(1, signal.SIGKILL)
        for rank in (0, 2):
            error, after, took = ranks.result(rank)
            assert type(error) is rankpact.PeerDied and error.ranks == (1,) and error.last_round == 1
            assert (error.group, error.round, error.operation, error.label, error.rank) == (
                "g",
                2,
                "min",
                "alone",
                rank,
            )
            assert "rank 1 died (last round 1)" in str(error)
            assert type(after) is rankpact.Poisoned and after.ranks == (1,)
            assert isinstance(after.origin, rankpact.PeerDied)
            assert str(error) in str(after) and (after.operation, after.label) == ("barrier", "after")
            assert took < 10
        assert ranks.code(1) == -signal.SIGKILL


def comes_late() -> rankpact.Error:
    with rankpact.connect() as world:
        group = world.group("g", timeout=20)
        group.barrier(label="first")
        if world.rank == 1:
            hold()
        timeout = 0.3 if world.rank == 0 else None
        error = caught(lambda: group.all_reduce([1], "min", label="second", timeout=timeout))
        say("late")
        return error


def test_a_deadline_names_who_is_missing_and_its_last_call() -> None:
    with started(comes_late) as ranks:
        ranks.heard(0)
        ranks.let_go(1)
        mine, theirs = ranks.results()
        for error in (mine, theirs):
            assert type(error) is rankpact.Timeout and isinstance(error, TimeoutError)
            assert (error.by, error.ranks) == (0, (1,))
            assert error.missing == (rankpact.Silent(1, 1, "first"),)
            assert 0.3 <= error.after < 20
            gave_up = f"rank 0 gave up after {error.after:.1f} s; missing: rank 1 (last round 1 `first`)"
            assert gave_up in str(error)


def leaves_early() -> rankpact.Error | None:
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        if world.rank == 1:
            return None
        return caught(group.barrier)


def test_a_rank_that_has_left_is_told_apart_from_a_dead_one() -> None:
    error, _ = results(leaves_early)
    assert type(error) is rankpact.PeerClosed and (error.ranks, error.last_round) == ((1,), 1)


def differ(first: Any, second: Any) -> rankpact.Error:
    with rankpact.connect() as world:
        group = world.group("g")
        name, *arguments = (first, second)[world.rank]
        return caught(lambda: getattr(group, name)(*arguments, label=f"rank {world.rank}"))


@pytest.mark.parametrize(
    ("first", "second", "shapes"),
    [
        (("all_reduce", [1], "min"), ("all_reduce", [1], "max"), ("1 slot", "1 slot")),
        (("all_reduce", [1] * 8, "min"), ("all_reduce", [1] * 9, "min"), ("8 slots", "9 slots")),
        (("all_reduce", [1], "min"), ("all_reduce", [1], "min"), ("1 slot", "1 slot")),
        (("all_reduce", [1], "min"), ("broadcast", b"x"), ("1 slot", "root 0")),
        (("all_gather", [1]), ("all_reduce", [1], "min"), ("1 slot", "1 slot")),
    ],
)
def test_calls_that_differ_are_told_side_by_side(first: Any, second: Any, shapes: Any) -> None:
    for error in results(differ, 2, first, second):
        assert type(error) is rankpact.Mismatch and set(error.ranks) == {0, 1}
        calls = sorted(error.calls)
        assert tuple(call.shape for call in calls) == shapes
        assert [call.label for call in calls] == ["rank 0", "rank 1"]
        assert all(f"`rank {rank}`" in str(error) for rank in (0, 1))


def has_other_settings() -> rankpact.Error:
    import os

    rank = int(os.environ["RANKPACT_RANK"])
    return caught(lambda: rankpact.connect(timeout=20 + rank))


def test_settings_that_differ_are_refused_on_all_ranks() -> None:
    for error in results(has_other_settings):
        assert type(error) is rankpact.ConfigError
        assert (error.field, error.values, error.ranks) == ("timeout", ("20 s", "21 s"), (0, 1))
        assert (error.group, error.operation) == ("world", "join")


def has_another_group() -> rankpact.Error:
    with rankpact.connect() as world:
        group = world.group("g", timeout=10 + world.rank)
        return caught(group.ready)


def test_settings_of_a_group_that_differ_are_refused_on_all_ranks() -> None:
    for error in results(has_another_group):
        assert type(error) is rankpact.ConfigError and error.values == ("10 s", "11 s")


def is_aborted() -> rankpact.Error:
    world = rankpact.connect()
    group = world.group("g")
    group.barrier()
    if world.rank == 1:
        world.abort("the model is corrupt")
    return caught(lambda: group.all_reduce([1], "min"))


def test_an_abort_reaches_all_ranks_with_its_reason() -> None:
    for error in results(is_aborted, 3):
        assert type(error) is rankpact.Aborted
        assert (error.ranks, error.reason) == ((1,), "the model is corrupt")


def sums_too_much() -> rankpact.Error:
    with rankpact.connect() as world:
        group = world.group("g")
        error = caught(lambda: group.all_reduce([0, 2**62], "sum"))
        assert group.all_reduce([2**62], "max") == [2**62]
        return error


def test_a_sum_that_does_not_fit_is_the_same_on_all_ranks_and_fails_nothing() -> None:
    for error in results(sums_too_much):
        assert type(error) is rankpact.Overflow and isinstance(error, OverflowError)
        assert (error.slot, error.round) == (1, 1)


def uses_what_is_closed() -> None:
    world = rankpact.connect()
    group, relay = world.group("g"), world.relay("r")
    group.barrier()
    handle = group.start_all_reduce([1], "min")
    group.close()
    for call in (group.barrier, handle.finish, lambda: group.path):
        assert type(caught(call)) is rankpact.Closed
    assert not world.closed
    world.close()
    world.close()
    assert world.closed
    for call in (
        group.barrier,
        relay.settle,
        lambda: world.group("h"),
        lambda: world.abort("late"),
        world.group("i").ready if False else relay.ready,
    ):
        assert type(caught(call)) is rankpact.Closed


def test_what_is_closed_says_so() -> None:
    results(uses_what_is_closed)


def message_of_another_label() -> rankpact.Error | None:
    with rankpact.connect() as world:
        group = world.group("g")
        if world.rank == 0:
            group.send(b"12345", 1, label="one")
            group.barrier()
            return None
        error = caught(lambda: group.recv(0, label="other"))
        assert type(caught(lambda: group.recv(0))) is rankpact.Poisoned
        # Only the pair has failed.
        group.barrier()
        return error


def test_a_message_of_another_label_is_a_mismatch_of_that_pair() -> None:
    _, error = results(message_of_another_label)
    assert type(error) is rankpact.Mismatch and error.operation == "recv"
    assert [(call.operation, call.shape) for call in error.calls] == [("send", "5 bytes"), ("recv", "from rank 0")]


def finds_no_room() -> rankpact.Error:
    with rankpact.connect(shm_dir="/mnt") as world:
        return caught(world.group("g", path="table").ready)


@needs_mounts
def test_a_full_folder_is_told_with_the_bytes_it_lacks() -> None:
    with started(finds_no_room, wrapper=with_mounts("mount -t tmpfs -o size=4k none /mnt")) as ranks:
        for error in ranks.results():
            assert type(error) is rankpact.NoSpace
            assert error.path.startswith("/mnt/") and error.needed > error.free


def test_a_folder_that_others_can_write_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    folder = tmp_path / "rankpact"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name, value in torchrun(0, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(rankpact.Foreign) as caught:
        rankpact.connect()
    assert (caught.value.path, caught.value.rank) == (str(folder), 0) and caught.value.found


def test_a_place_that_nobody_leads_to_is_told_with_both_addresses() -> None:
    # 192.0.2.0/24 is in no network.
    with pytest.raises(rankpact.Unreached) as caught:
        rankpact.connect(rank=1, size=2, rendezvous="tcp://192.0.2.1:29400", token="t", timeout=0.5)
    error = caught.value
    assert isinstance(error, TimeoutError) and isinstance(error, rankpact.Timeout)
    assert (error.ranks, error.by, error.target) == ((0,), 1, "192.0.2.1:29400")
    assert error.after >= 0.5 and error.trouble


def test_a_place_that_is_not_of_this_host_is_told() -> None:
    with pytest.raises(rankpact.IoError, match="cannot serve the rendezvous") as caught:
        rankpact.connect(rank=0, size=2, rendezvous="tcp://192.0.2.1:29400", token="t", timeout=0.5)
    assert isinstance(caught.value, OSError)


def test_all_errors_are_below_one_and_exported() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert len(classes) == 18
    for error in classes:
        assert issubclass(error, rankpact.Error) and getattr(rankpact, error.__name__) is error
        made = error("text", rank=3)
        assert str(made) == "text" and made.rank == 3 and made.ranks == ()
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is error and (str(again), again.rank) == ("text", 3)
    assert issubclass(rankpact.Timeout, TimeoutError) and issubclass(rankpact.UsageError, ValueError)
    assert issubclass(rankpact.Permission, PermissionError) and issubclass(rankpact.Overflow, OverflowError)
