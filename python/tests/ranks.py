"""Ranks of a test: processes that each call one function of the test's file.

A rank reports what the function returns. It may also talk with the test: what it says are lines of its output, and it
waits for the test at hold(). Whatever it writes to its error output fails the test, warnings of the interpreter too.

As a program this file is such a rank.
"""

import contextlib
import faulthandler
import importlib.util
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rankpact

HANGS = 60
"""Seconds after which ranks that hang tell where, and are ended."""


class Ranks:
    """The processes of one job."""

    def __init__(
        self,
        function: Callable[..., Any],
        count: int,
        arguments: tuple[Any, ...],
        environment: dict[str, str],
        wrapper: tuple[str, ...],
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rankpact-test-")
        self._job = secrets.token_hex(16)
        folder = Path(self._folder.name)
        meeting = folder / "meeting"
        meeting.mkdir(mode=0o700)
        file, name = function.__code__.co_filename, function.__name__
        (folder / "arguments").write_bytes(pickle.dumps(arguments))
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(count):
            given = {
                "RANKPACT_RANK": str(rank),
                "RANKPACT_WORLD_SIZE": str(count),
                "RANKPACT_RENDEZVOUS": f"file://{meeting}",
                "RANKPACT_JOB": self._job,
                "RANKPACT_TIMEOUT": "30",
            } | environment
            own = {name: value for name, value in given.items() if value}
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("RANKPACT_")}
            command = [*wrapper, sys.executable, "-X", "dev", __file__, file, name, str(folder), str(rank)]
            with (folder / f"errors{rank}").open("w") as errors:
                process = subprocess.Popen(
                    command,
                    env=inherited | own,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            self.processes.append(process)
        self._dog = threading.Timer(HANGS, self._bark)
        self._dog.start()

    def heard(self, rank: int) -> str:
        """The next line that rank says."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, f"rank {rank} has ended:\n{self.errors(rank)}"
        return line.rstrip("\n")

    def let_go(self, rank: int) -> None:
        """Lets rank go on from hold()."""
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write("go on\n")
        stdin.flush()

    def asleep(self, rank: int) -> None:
        """Waits until the main thread of rank sleeps: in the call that it has come to after what it has said."""
        while (state := _state_and_group(Path(f"/proc/{self.processes[rank].pid}/stat"))[0]) != b"S":
            assert state != b"Z", f"rank {rank} has ended:\n{self.errors(rank)}"
            time.sleep(0.01)

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.processes[rank].send_signal(number)

    def errors(self, rank: int) -> str:
        """What rank has written to its error output so far."""
        return (Path(self._folder.name) / f"errors{rank}").read_text()

    def code(self, rank: int) -> int:
        """The exit code of rank; waits for its end."""
        return self.processes[rank].wait()

    def result(self, rank: int) -> Any:
        """What the function has returned on rank, which must have ended well."""
        code, errors = self.code(rank), self.errors(rank)
        assert (code, errors) == (0, ""), f"rank {rank} ended with {code}:\n{errors}"
        return pickle.loads((Path(self._folder.name) / f"result{rank}").read_bytes())

    def results(self) -> list[Any]:
        return [self.result(rank) for rank in range(len(self.processes))]

    def _bark(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        for process in self.processes:
            process.kill()

    def end(self) -> None:
        """Ends what is left, and sees that nothing else is."""
        self._dog.cancel()
        self._dog.join()
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        left = [process.pid for process in self.processes if _is_there(process.pid)]
        for group in left:
            os.killpg(group, signal.SIGKILL)
        names = [name for name in os.listdir("/dev/shm") if self._job in name]
        self._folder.cleanup()
        assert (left, names) == ([], []), "processes and names that are left"


def _is_there(group: int) -> bool:
    """Whether a process of that group is left; one that is just being killed may be for a moment."""
    for _ in range(200):
        if not any(_lives_in(group, stat) for stat in Path("/proc").glob("[0-9]*/stat")):
            return False
        time.sleep(0.01)
    return True


def _lives_in(group: int, stat: Path) -> bool:
    try:
        state, its_group = _state_and_group(stat)
    except OSError:
        return False
    return its_group == group and state != b"Z"


def _state_and_group(stat: Path) -> tuple[bytes, int]:
    # The name of a program before them may be any bytes.
    state, _, group, *_ = stat.read_bytes().rpartition(b")")[2].split()
    return state, int(group)


@contextlib.contextmanager
def started(
    function: Callable[..., Any],
    count: int = 2,
    *arguments: Any,
    wrapper: tuple[str, ...] = (),
    **environment: str,
) -> Iterator[Ranks]:
    """Ranks that call function(*arguments), with variables of their own; an empty one is taken away."""
    ranks = Ranks(function, count, arguments, environment, wrapper)
    try:
        yield ranks
    finally:
        ranks.end()


def results(function: Callable[..., Any], count: int = 2, *arguments: Any, **environment: str) -> list[Any]:
    """What all ranks return, which must end well."""
    with started(function, count, *arguments, **environment) as ranks:
        return ranks.results()


def torchrun(rank: int, size: int) -> dict[str, str]:
    """What torchrun sets on one host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(os.getpid()),
    }


def with_mounts(script: str) -> tuple[str, ...]:
    """Words before a command that has what a script mounts for itself alone."""
    return ("unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh")


def _may_mount() -> bool:
    try:
        return subprocess.run([*with_mounts("mount -t tmpfs none /mnt"), "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not _may_mount(), reason="needs the right to mount")

TWO_HOSTS = with_mounts('if [ "$RANKPACT_RANK" = 2 ]; then mount -t tmpfs none /dev/shm; fi')
"""As if rank 2 were on another host than ranks 0 and 1: they do not see its memory."""


def say(line: str) -> None:
    print(line, flush=True)


def hold() -> None:
    """Waits until the test lets this rank go."""
    assert sys.stdin.readline(), "the test has ended"


def in_a_call(group: rankpact.Group) -> None:
    """Waits until another thread is in a call of the group: all_reduce, which it enters with the interpreter lock.

    A call that enters without it could find the group used by this look.
    """
    with contextlib.suppress(rankpact.UsageError):
        while group.path:
            time.sleep(0.001)


def main(file: str, name: str, folder: str, rank: str) -> None:
    faulthandler.register(signal.SIGUSR1)
    # Tests that run in the background ignore it, and so would what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spec = importlib.util.spec_from_file_location("ranks_of_a_test", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    result = getattr(module, name)(*arguments)
    (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    # As the module that tests import.
    sys.modules["ranks"] = sys.modules["__main__"]
    main(*sys.argv[1:])
