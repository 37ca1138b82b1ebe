"""Joining over a process group of torch: a stand-in, and the real one where it is installed."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import rankpact
from ranks import results

STAND_IN = str(Path(__file__).parent / "stand_in")
HAS_TORCH = importlib.util.find_spec("torch") is not None


def joins_over_a_group(folder: str, apart: bool) -> tuple[int, int, list[int], str | None, list[str]]:
    rank = os.environ.pop("RANKPACT_RANK")
    size = os.environ.pop("RANKPACT_WORLD_SIZE")
    del os.environ["RANKPACT_RENDEZVOUS"]
    os.environ |= {"STAND_IN_RANK": rank, "STAND_IN_SIZE": size, "STAND_IN_GROUP": folder}
    sys.path.insert(0, STAND_IN)
    if apart:
        # As if they were on several hosts.
        from rankpact import _torch

        os.environ["HOSTNAME"] = "localhost"
        _torch._place = lambda: (rank,)
    os.environ["TMPDIR"] = folder
    with rankpact.connect_from_torch(timeout=20) as world:
        group = world.group("g")
        total = group.all_reduce([world.rank], "sum")
        left = [str(path) for path in Path(folder).glob("rankpact-torch-*")]
        return world.rank, world.size, total, group.path, left if rank == "0" else []


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_join_over_a_process_group(tmp_path: Path, apart: bool) -> None:
    joined = results(joins_over_a_group, 3, str(tmp_path), apart)
    assert joined == [(rank, 3, [3], "table", []) for rank in range(3)]


def joins_over_torch(folder: str) -> tuple[list[int], list[int], list[int], list[bool]]:
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANKPACT_RANK"]), int(os.environ["RANKPACT_WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    pair: Any = dist.new_group([1, 2])
    with rankpact.connect_from_torch() as world:
        group = world.group("g")
        tensor = torch.tensor([rank, -rank], dtype=torch.int64, requires_grad=False)
        group.all_reduce_(tensor, "max")
        flags = torch.tensor([rank == 1, False])
        group.all_reduce_(flags, "or")
        for refused in (torch.zeros(3), torch.zeros(3, requires_grad=True), torch.zeros(8, dtype=torch.int64)[::2]):
            with pytest.raises((TypeError, ValueError)):
                group.all_reduce_(refused, "max")
        everybody = group.all_reduce([rank], "sum")
    if rank == 0:
        among_pair = [2]
    else:
        with rankpact.connect_from_torch(pair) as world:
            among_pair = world.group("g").all_reduce([world.size], "min")
    dist.destroy_process_group()
    return tensor.tolist(), everybody, among_pair, flags.tolist()


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_ranks_join_over_a_process_group_of_torch(tmp_path: Path) -> None:
    assert results(joins_over_torch, 3, str(tmp_path)) == [([2, 0], [3], [2], [True, False])] * 3
