"""What can go wrong: one class for each kind, all below Error, with fields to act on."""

from typing import NamedTuple


class Silent(NamedTuple):
    """A rank that had not arrived when a deadline passed."""

    rank: int
    """The world rank."""
    last_round: int
    """The last round it took part in; 0 for none."""
    last_label: str
    """The label of that round; empty where it is not known."""


class Described(NamedTuple):
    """One rank's side of a mismatch."""

    rank: int
    """The world rank."""
    operation: str
    """Its operation."""
    shape: str
    """The width of its contribution, its root, or the length of its message."""
    label: str
    """Its label."""


class Error(Exception):
    """Why a call failed. Its text is one line to act on; ranks are world ranks."""

    group: str = ""
    """Name of the group or relay; "world" while joining."""
    round: int = 0
    """Round of the group, or number of a message; 0 outside of both."""
    operation: str = ""
    """What this rank was doing: "min", "broadcast", "send", "join", ..."""
    label: str = ""
    """The caller's label; empty outside of rounds."""
    rank: int = 0
    """This rank."""
    ranks: tuple[int, ...] = ()
    """The ranks that it is about: who is missing, died, left, aborted, or made different calls."""

    def __init__(self, message: str = "", /, **fields: object) -> None:
        super().__init__(message)
        self.__dict__.update(fields)


class Timeout(Error, TimeoutError):
    """The deadline passed and some ranks had not arrived."""

    by: int = 0
    """The rank whose deadline passed."""
    after: float = 0.0
    """How long that rank waited, in seconds."""
    missing: tuple[Silent, ...] = ()
    """Who was missing then."""


class Unreached(Timeout):
    """A rank could not be reached over the network before the deadline."""

    source: str | None = None
    """The address of this host that the last attempt came from, where it got one."""
    target: str = ""
    """Where it went."""
    trouble: str = ""
    """Why it failed."""


class PeerDied(Error):
    """A rank died."""

    last_round: int = 0
    """The last round it took part in."""


class PeerClosed(Error):
    """A rank left in good order while others still needed it."""

    last_round: int = 0
    """The last round it took part in."""


class Mismatch(Error):
    """Two ranks made different calls in the same round."""

    calls: tuple[Described, ...] = ()
    """Both calls."""


class Divergence(Error):
    """The tables of a cache differ between ranks.

    Kept for the cache layer, which has no Python calls yet: nothing here raises it.
    """


class Poisoned(Error):
    """The group, pair or relay failed earlier; nothing more can be done with it."""

    origin: Error
    """The failure that ended it; also the cause of this exception."""

    def __init__(self, message: str = "", /, **fields: object) -> None:
        super().__init__(message, **fields)
        self.__cause__ = getattr(self, "origin", None)


class ConfigError(Error):
    """Two ranks were started with different settings."""

    field: str = ""
    """The setting."""
    values: tuple[str, str] = ("", "")
    """What the two ranks have."""


class Aborted(Error):
    """A rank aborted the job."""

    reason: str = ""
    """Its reason."""


class NoSpace(Error):
    """The folder of the segments is full."""

    path: str = ""
    """Where the segment was to be."""
    needed: int = 0
    """Bytes it needs."""
    free: int = 0
    """Bytes that are free."""


class Permission(Error, PermissionError):
    """The system refused access."""

    path: str = ""
    """What was to be opened."""
    owner: str = ""
    """Who owns it, where that is known."""


class Foreign(Error):
    """What lies under a name is not ours."""

    path: str = ""
    """What was to be opened."""
    found: str = ""
    """What was found."""


class Overflow(Error, OverflowError):
    """The result of a slot does not fit. The round has completed, and the next call works."""

    slot: int = 0
    """The slot."""


class Forked(Error):
    """The world belongs to the parent of this forked process."""


class Closed(Error):
    """This rank has closed the group or the world."""


class UsageError(Error, ValueError):
    """The caller did something that can never work."""


class IoError(Error, OSError):
    """The system refused something, or what it delivered cannot be used."""
