"""Joining a job, and its end with the program."""

import atexit
import sys
import weakref
from typing import Literal

from rankpact import _native
from rankpact._native import World

_worlds: weakref.WeakSet[World] = weakref.WeakSet()


def connect(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | None = None,
    timeout: float | None = None,
    path: Literal["auto", "table", "tcp"] | None = None,
    wait: Literal["auto", "spin", "yield", "park"] | None = None,
    interface: str | None = None,
    shm_dir: str | None = None,
) -> World:
    """Joins the job, and waits until all ranks have joined, at most for the timeout.

    Without arguments the launcher says which rank this is and where the ranks meet: rankpact run, torchrun, Open MPI,
    PMI or Slurm. Or give rank, size and rendezvous: "file:///folder", a private folder of this job that all ranks see,
    or "tcp://host:port", at which rank 0 listens, with a token that all ranks know.

    timeout (seconds; 300 if it is not given) is that of joining and of every call without one of its own. path is
    "auto", "table" or "tcp". Both are equal on all ranks. wait, interface and shm_dir are each rank's own affair. Each
    argument stands for the variable of that name, RANKPACT_TIMEOUT and so on, and goes before it.
    """
    explicit = (rank, size, rendezvous)
    if any(value is not None for value in explicit) and None in explicit:
        raise TypeError("rank, size and rendezvous are given together, or the launcher gives all of them")
    arguments = {
        "RANKPACT_RANK": rank,
        "RANKPACT_WORLD_SIZE": size,
        "RANKPACT_RENDEZVOUS": rendezvous,
        "RANKPACT_TOKEN": token,
        "RANKPACT_TIMEOUT": timeout,
        "RANKPACT_PATH": path,
        "RANKPACT_WAIT": wait,
        "RANKPACT_INTERFACE": interface,
        "RANKPACT_SHM_DIR": shm_dir,
    }
    world = _native.connect({name: str(value) for name, value in arguments.items() if value is not None})
    _worlds.add(world)
    _watch_end()
    return world


def _watch_end() -> None:
    """Has the end of this process close what is left.

    Children of multiprocessing may end without the handlers of atexit, but not without its own.
    """
    atexit.unregister(_end)
    atexit.register(_end)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    # An exception that nobody caught has ended the program, and is the reason that the other ranks want to hear.
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for world in list(_worlds):
        world._end(uncaught)


def _end() -> None:
    _close_all()
    _native.finalize()
