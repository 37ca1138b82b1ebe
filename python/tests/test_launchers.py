"""Programs started as users start them."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rankpact
from ranks import results, started, torchrun

PYTHON = Path(__file__).parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", PYTHON.parent / "target"))
BUILT = [TARGET / profile / "rankpact" for profile in ("release", "debug")]
PROGRAM = next((str(path) for path in BUILT if path.exists()), shutil.which("rankpact"))

needs_program = pytest.mark.skipif(PROGRAM is None, reason="needs the program: cargo build -p rankpact")
needs_torch = pytest.mark.skipif(shutil.which("torchrun") is None, reason="torch is not installed")


def run(*command: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RANKPACT_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=inherited | environment, check=False)


def test_the_demo_shows_an_agreement_and_a_mismatch() -> None:
    ended = run(sys.executable, "-m", "rankpact.demo")
    assert (ended.returncode, ended.stderr) == (0, "")
    for rank in range(4):
        assert (
            f"rank {rank}: landed everywhere [12, 4], plan {{'prefill': [3, 8]}}, by way of the table\n" in ended.stdout
        )
    assert ended.stdout.count("ranks made different calls: ") == 4


@needs_program
def test_rankpact_run_starts_python_ranks() -> None:
    example = PYTHON / "examples" / "scheduler_tick.py"
    ended = run(str(PROGRAM), "run", "-n", "4", "--", sys.executable, example)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("1000 ticks of 4 ranks by way of the table: ")


@needs_program
def test_a_python_rank_that_fails_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import rankpact\n"
        "with rankpact.connect() as world:\n"
        "    group = world.group('g')\n"
        "    group.barrier()\n"
        "    if world.rank == 1:\n"
        "        raise RuntimeError('no such expert')\n"
        "    group.barrier()\n"
    )
    ended = run(str(PROGRAM), "run", "-n", "3", "--", sys.executable, program)
    assert ended.returncode == 1 and "RuntimeError: no such expert" in ended.stderr


@needs_torch
def test_torchrun_starts_ranks() -> None:
    example = PYTHON / "examples" / "scheduler_tick.py"
    ended = run("torchrun", "--nproc-per-node", "2", example)
    assert ended.returncode == 0 and "1000 ticks of 2 ranks by way of the table: " in ended.stdout, ended.stderr


def joins() -> tuple[int, int, list[int]]:
    with rankpact.connect() as world:
        return world.rank, world.size, world.group("g").all_reduce([world.rank], "sum")


def joins_by_its_own_arguments(folder: str) -> tuple[int, int, list[int]]:
    # What the launcher says of another place does not matter.
    rank = int(os.environ["RANKPACT_RANK"])
    with rankpact.connect(rank=1 - rank, size=2, rendezvous=f"file://{folder}", timeout=20, wait="park") as world:
        return world.rank, world.size, world.group("g").all_reduce([world.rank], "sum")


def test_ranks_join_by_arguments(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert results(joins_by_its_own_arguments, 2, str(tmp_path)) == [(1, 2, [1]), (0, 2, [1])]


def joins_at_an_address(port: int) -> str | None:
    rank = int(os.environ["RANKPACT_RANK"])
    with rankpact.connect(rank=rank, size=2, rendezvous=f"tcp://127.0.0.1:{port}", token="secret") as world:
        group = world.group("g")
        group.barrier()
        return group.path


def test_ranks_join_at_an_address() -> None:
    import socket

    with socket.socket() as place:
        # A port that is bound is given to nobody else; another one that shares may still listen there.
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        assert results(joins_at_an_address, 2, place.getsockname()[1]) == ["table", "table"]


def joins_as_torchrun_says(size: int, runtime: str) -> tuple[int, int, list[int]]:
    rank = int(os.environ.pop("RANKPACT_RANK"))
    for name in list(os.environ):
        if name.startswith("RANKPACT_"):
            del os.environ[name]
    os.environ |= torchrun(rank, size) | {"MASTER_PORT": "29500", "XDG_RUNTIME_DIR": runtime}
    return joins()


def test_ranks_join_by_what_torchrun_sets(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert results(joins_as_torchrun_says, 3, 3, str(tmp_path)) == [(rank, 3, [3]) for rank in range(3)]
    assert list(tmp_path.iterdir()) == []


def joins_and_dies() -> None:
    with rankpact.connect() as world:
        world.group("g").barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def test_ranks_that_are_all_killed_leave_nothing() -> None:
    with started(joins_and_dies, 3) as ranks:
        # What is left would be found at the end of the block.
        assert [ranks.code(rank) for rank in range(3)] == [-signal.SIGKILL] * 3
