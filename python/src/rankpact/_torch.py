"""Joining over a process group of torch, whatever its backend: it tells all ranks where they meet."""

import os
import secrets
import shutil
import socket
import tempfile
from typing import Any, Literal

from rankpact._job import connect
from rankpact._native import World


def connect_from_torch(
    process_group: Any = None,
    *,
    timeout: float | None = None,
    path: Literal["auto", "table", "tcp"] | None = None,
    wait: Literal["auto", "spin", "yield", "park"] | None = None,
    interface: str | None = None,
    shm_dir: str | None = None,
) -> World:
    """Joins a world whose ranks are those of a torch process group, or of the default one. All its ranks call this.

    Nothing else is needed where all ranks share a host. Across hosts rank 0 listens under its host name, at
    RANKPACT_PORT or else at a free port; the secret goes through the process group. The other arguments are those of
    connect().
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    offer = _Offer() if rank == 0 else None
    try:
        places: list[Any] = [None] * size
        mine = (_place(), offer.words() if offer else None)
        dist.all_gather_object(places, mine, group=process_group)
        (folder, address, token) = places[0][1]
        together = all(place == places[0][0] for place, _ in places)
        return connect(
            rank=rank,
            size=size,
            rendezvous=f"file://{folder}" if together else f"tcp://{address}",
            token=token,
            timeout=timeout,
            path=path,
            wait=wait,
            interface=interface,
            shm_dir=shm_dir,
        )
    finally:
        if offer:
            offer.withdraw()


class _Offer:
    """Where the ranks can meet: a folder if all of them see it, else an address."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rankpact-torch-")
        port = os.environ.get("RANKPACT_PORT") or _free_port()
        self._address = f"{socket.gethostname()}:{port}"
        self._token = secrets.token_hex(32)

    def words(self) -> tuple[str, str, str]:
        return self._folder, self._address, self._token

    def withdraw(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def _place() -> tuple[str, ...]:
    """The same for processes that see the same files and the same loopback interface, as the same user."""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        kernel = boot.read().strip()
    spaces = (os.readlink(f"/proc/self/ns/{space}") for space in ("mnt", "net", "user"))
    return (kernel, *spaces, str(os.getuid()))
