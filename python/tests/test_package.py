"""The package as it is installed."""

import logging
import re
import subprocess
import sys
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
            say("told")

    with rankpact.connect() as world:
        group = world.group("g")
        group.barrier(label="first")
        logging.getLogger("rankpact").addHandler(Handler())
        if world.rank == 1:
            hold()
        group.barrier(label="second")
    return heard


def test_a_silent_rank_is_told_of_by_the_logger() -> None:
    with started(waits_for_a_silent_rank) as ranks:
        ranks.heard(0)
        ranks.let_go(1)
        [(name, level, text)], silent = ranks.results()
        assert (name, level, silent) == ("rankpact", "WARNING", [])
        assert re.fullmatch(r"group g: rank 1 alive, silent \d+ s, last round 1 `first`", text)
