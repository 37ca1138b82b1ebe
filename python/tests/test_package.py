"""The package as it is installed."""

import logging
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import rankpact
from ranks import hold, say, started


def test_the_package_says_what_it_is() -> None:
    folder = Path(rankpact.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_native.pyi").exists()
    assert rankpact.__version__ == version("rankpact")
    assert all(getattr(rankpact, name) is not None for name in rankpact.__all__)
    for thing in (rankpact.World, rankpact.Group, rankpact.Relay, rankpact.Started):
        assert thing.__module__ == "rankpact"
        public = [name for name in vars(thing) if not name.startswith("_")]
        assert thing.__doc__ and all(getattr(thing, name).__doc__ for name in public)


def test_a_free_threaded_interpreter_is_refused() -> None:
    program = "import sys; sys.abiflags = 't'; import rankpact"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ImportError: rankpact does not support free-threaded Python yet" in ended.stderr


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    program = (
        "import sys, rankpact; print(sorted({'torch', 'numpy', 'multiprocessing', 'pickle'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def waits_for_a_silent_rank() -> list[tuple[str, str, str]]:
    heard = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append((record.name, record.levelname, record.getMessage()))

    logging.getLogger("rankpact").addHandler(Handler())
    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier(label="first")
        if world.rank == 1:
            hold()
        group.barrier(label="second")
        say("over")
    return heard


def test_a_silent_rank_is_told_of_by_the_logger() -> None:
    with started(waits_for_a_silent_rank) as ranks:
        time.sleep(6.5)
        ranks.let_go(1)
        told, silent = ranks.results()
        assert silent == []
        assert told == [("rankpact", "WARNING", "group g: rank 1 alive, silent 5 s, last round 1 `first`")]
