"""torch.distributed over gloo: torch_gloo.py FOLDER RANK SIZE CASE...; cases as in case.h."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

folder, (rank, size), cases = sys.argv[1], map(int, sys.argv[2:4]), sys.argv[4:]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank, world_size=size)
for case in cases:
    name, rounds = case.split(":")
    (width, calls), rounds = map(int, name.split("x")), int(rounds)
    slots = torch.arange(width, dtype=torch.int64)

    def once(values):
        for _ in range(calls):
            dist.all_reduce(values, op=dist.ReduceOp.MIN)

    on, warm_up, until = torch.ones(1, dtype=torch.int64), 0, time.monotonic() + 0.3
    while on.item():
        values = (rank + warm_up + slots) % size * 1000 + warm_up + slots
        dist.all_reduce(values, op=dist.ReduceOp.MIN)
        assert torch.equal(values, warm_up + slots), "wrong value"
        warm_up += 1
        on.fill_(time.monotonic() < until)
        dist.all_reduce(on, op=dist.ReduceOp.MIN)
    wall, cpu = time.monotonic_ns(), time.process_time_ns()
    for _ in range(rounds):
        once(values)
    wall, cpu = time.monotonic_ns() - wall, time.process_time_ns() - cpu
    once(values)
    times, before = [], time.monotonic_ns()
    for _ in range(rounds):
        once(values)
        after = time.monotonic_ns()
        times.append(min(after - before, 2**32 - 1))
        before = after
    print(json.dumps({"case": name, "rank": rank, "wall_ns": wall, "cpu_ns": cpu, "times_ns": times}), flush=True)
dist.barrier()
dist.destroy_process_group()
