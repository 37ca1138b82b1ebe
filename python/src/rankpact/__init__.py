"""The ranks of one machine agree on a few integers through shared memory.

    import rankpact

    with rankpact.connect() as world:
        tp = world.group("tp")
        ready = tp.all_reduce([12, 7], "min", label="counts")

All calls are those of World, Group and Relay; what can go wrong is below Error. Notices, such as of a rank that is
silent for long, go to the logger "rankpact".
"""

import sys as _sys

if "t" in _sys.abiflags:
    raise ImportError(
        "rankpact does not support free-threaded Python yet: "
        "use an interpreter with the interpreter lock (python3.13, not python3.13t)"
    )

from rankpact._job import connect
from rankpact._native import Group, Relay, Started, World, __version__
from rankpact._operation import Op
from rankpact._torch import connect_from_torch
from rankpact.errors import (
    Aborted,
    Closed,
    ConfigError,
    Described,
    Divergence,
    Error,
    Foreign,
    Forked,
    IoError,
    Mismatch,
    NoSpace,
    Overflow,
    PeerClosed,
    PeerDied,
    Permission,
    Poisoned,
    Silent,
    Timeout,
    Unreached,
    UsageError,
)

__all__ = [
    "Aborted",
    "Closed",
    "ConfigError",
    "Described",
    "Divergence",
    "Error",
    "Foreign",
    "Forked",
    "Group",
    "IoError",
    "Mismatch",
    "NoSpace",
    "Op",
    "Overflow",
    "PeerClosed",
    "PeerDied",
    "Permission",
    "Poisoned",
    "Relay",
    "Silent",
    "Started",
    "Timeout",
    "Unreached",
    "UsageError",
    "World",
    "__version__",
    "connect",
    "connect_from_torch",
]
