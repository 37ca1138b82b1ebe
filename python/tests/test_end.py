"""How it all ends: blocks, exceptions, the end of the interpreter, forks, spawned children."""

import gc
import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import rankpact
from ranks import hold, in_a_call, results, say, started


def leaves(how: str) -> str:
    """Rank 1 leaves in some way, rank 0 still calls."""
    world = rankpact.connect()
    group = world.group("g")
    group.barrier()
    if world.rank == 0:
        try:
            group.barrier()
        except rankpact.Error as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"
    if how == "forgets":
        globals()["kept"] = world
    elif how == "closes":
        world.close()
    elif how == "drops":
        del group, world
    elif how == "exits in a block":
        with world:
            sys.exit()
    elif how == "fails in a block":
        try:
            with world:
                raise KeyError("no such request")
        except KeyError:
            pass
    elif how == "fails":
        raise KeyError("no such request")
    elif how == "fails to exit":
        with world:
            sys.exit("the model is gone")
    elif how == "vanishes":
        os._exit(0)
    return "left"


@pytest.mark.parametrize(
    ("how", "told", "code"),
    [
        ("forgets", "PeerClosed: group g, round 2, barrier `barrier`, rank 0: rank 1 has left", 0),
        ("closes", "PeerClosed: ", 0),
        ("drops", "PeerClosed: ", 0),
        ("exits in a block", "PeerClosed: ", 0),
        (
            "fails in a block",
            "Aborted: group g, round 2, barrier `barrier`, rank 0: rank 1 aborted: KeyError: 'no such",
            0,
        ),
        ("fails", "Aborted: group g, round 2, barrier `barrier`, rank 0: rank 1 aborted: KeyError: 'no such", 1),
        (
            "fails to exit",
            "Aborted: group g, round 2, barrier `barrier`, rank 0: rank 1 aborted: SystemExit: the model",
            1,
        ),
        ("vanishes", "PeerDied: ", 0),
    ],
)
def test_the_others_are_told_how_a_rank_has_ended(how: str, told: str, code: int) -> None:
    with started(leaves, 2, how) as ranks:
        assert ranks.result(0).startswith(told)
        assert ranks.code(1) == code
        assert ranks.errors(1) == "" if code == 0 else "Error" in ranks.errors(1) or "the model" in ranks.errors(1)


def keeps_going_without_its_world() -> list[int]:
    group = rankpact.connect().group("g")
    gc.collect()
    return group.all_reduce([1], "sum")


def test_a_group_keeps_its_world() -> None:
    assert results(keeps_going_without_its_world) == [[2], [2]]


def runs_out_of_nothing() -> tuple[int, int]:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with rankpact.connect() as world:
        world.group("first").barrier()
        before, threads = files(), len(os.listdir("/proc/self/task"))
        for turn in range(20):
            group = world.group("g")
            group.all_reduce([turn] * 20, "max")
            if turn % 2:
                group.close()
        del group
        return files() - before, len(os.listdir("/proc/self/task")) - threads


def test_groups_that_are_dropped_give_everything_back() -> None:
    for files, threads in results(runs_out_of_nothing):
        # Those of the joining may go meanwhile.
        assert files <= 0 and threads <= 0


def forked() -> int:
    with warnings.catch_warnings():
        # Newer interpreters warn of threads, and here there are some.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def forks() -> dict[str, Any]:
    """Rank 0 forks children that do all they can; the job goes on."""
    seen: dict[str, Any] = {}
    world = rankpact.connect()
    group, relay = world.group("g"), world.relay("r")
    group.all_reduce([1], "min")
    handle = group.start_all_reduce([1], "sum")
    if world.rank == 0:
        read, write = os.pipe()

        def child(body: Any) -> int:
            pid = forked()
            if pid:
                return pid
            body()
            os._exit(0)

        def tries() -> None:
            kinds = []
            calls = (
                lambda: group.all_reduce([1], "min"),
                handle.finish,
                lambda: group.send(b"", 1),
                lambda: world.group("h"),
                lambda: world.abort("a child"),
                lambda: group.round,
                relay.settle,
            )
            for call in calls:
                try:
                    call()
                except rankpact.Error as error:
                    kinds.append(type(error).__name__)
            group.close()
            relay.close()
            world.close()
            os.write(write, " ".join(kinds).encode())

        os.waitpid(child(tries), 0)
        seen["kinds"] = os.read(read, 1000).decode().split()

        # Through the end of the interpreter, with all its handlers.
        pid = forked()
        if pid == 0:
            sys.exit(0)
        _, seen["exit"] = os.waitpid(pid, 0)

        def drops() -> None:
            nonlocal group, handle, relay, world
            del group, handle, relay, world
            gc.collect()

        _, seen["drop"] = os.waitpid(child(drops), 0)
        sleeper = child(lambda: time.sleep(60))
        os.kill(sleeper, signal.SIGKILL)
        _, seen["killed"] = os.waitpid(sleeper, 0)
    seen["sum"] = handle.finish()
    seen["min"] = group.all_reduce([world.rank], "min")
    world.close()
    return seen


def test_a_forked_child_owns_nothing_and_disturbs_nothing() -> None:
    first, second = results(forks)
    assert first["kinds"] == ["Forked"] * 7
    assert (first["exit"], first["drop"], first["killed"]) == (0, 0, signal.SIGKILL)
    for seen in (first, second):
        assert (seen["sum"], seen["min"]) == ([2], [0])


def forks_while_another_thread_waits() -> str:
    import threading

    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        told = ""
        if world.rank == 1:
            hold()
            group.all_reduce([1], "min")
            return told
        thread = threading.Thread(target=group.all_reduce, args=([1], "min"))
        thread.start()
        in_a_call(group)
        read, write = os.pipe()
        pid = forked()
        if pid == 0:
            try:
                group.barrier()
            except rankpact.Error as error:
                os.write(write, type(error).__name__.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        told = os.read(read, 100).decode()
        say("forked")
        thread.join()
        return told


def test_a_fork_in_the_middle_of_a_call_is_no_use_of_two_threads() -> None:
    with started(forks_while_another_thread_waits) as ranks:
        ranks.heard(0)
        ranks.let_go(1)
        assert ranks.result(0) == "Forked"


def child_of_multiprocessing(rank: int, folder: str, results: Any) -> None:
    world = rankpact.connect(rank=rank, size=2, rendezvous=f"file://{folder}", timeout=20)
    group = world.group("g")
    group.barrier()
    if rank == 0:
        try:
            group.barrier()
        except rankpact.Error as error:
            results.put(type(error).__name__)
    globals()["kept"] = world


def starts_children(method: str) -> str:
    import tempfile

    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        told: Any = context.Queue()
        children = [context.Process(target=child_of_multiprocessing, args=(rank, folder, told)) for rank in (0, 1)]
        for child in children:
            child.start()
        kind: str = told.get(timeout=40)
        for child in children:
            child.join(40)
            assert child.exitcode == 0
        return kind


def test_children_of_multiprocessing_close_at_their_end(tmp_path: Path) -> None:
    # In a program, whose children can import it, and whose error output is seen: no warning of a resource tracker.
    import subprocess

    program = tmp_path / "program.py"
    for method in ("spawn", "fork", "forkserver"):
        program.write_text(
            f"import sys\nsys.path[:0] = {sys.path[:1] + [str(Path(__file__).parent)]!r}\n"
            f"import test_end\nif __name__ == '__main__': print(test_end.starts_children({method!r}))\n"
        )
        ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=90)
        assert (ended.stdout, ended.stderr, ended.returncode) == ("PeerClosed\n", "", 0), method


def has_a_group() -> list[int]:
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier()
        say("open")
        hold()
        return group.all_reduce([world.rank], "max")


def test_the_memory_of_a_group_has_no_name_that_another_python_could_take_along() -> None:
    # The resource tracker of a Python that opens shared memory by its name removes that name at its end.
    with started(has_a_group) as ranks:
        for rank, process in enumerate(ranks.processes):
            ranks.heard(rank)
            maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            mapped = [line for line in maps if "/dev/shm/" in line]
            assert mapped and all(line.endswith("(deleted)") for line in mapped)
            ranks.let_go(rank)
        assert ranks.results() == [[1], [1]]
