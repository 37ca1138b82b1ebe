"""MIN of 8 int64 over ranks that are processes: rankpact against torch's gloo, in one run and in turns.

    python versus_torch.py [--ranks 2,4,8] [--seconds 2] [--json FILE]

Both reduce the same tensor in place. Times are in microseconds, those of the worst rank at each quantile; results are
checked. Without torch there is nothing to compare with, and it says so.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

TURNS = 10
WIDTH = 8


def measured(
    call: Callable[[], None], check: Callable[[], None], agree: Callable[[bool], bool], seconds: float
) -> list[int]:
    """What each call takes, in nanoseconds, for about so long. All ranks make equally many calls."""
    clock, taken = time.perf_counter_ns, []
    until = time.monotonic() + seconds
    while agree(time.monotonic() < until):
        for _ in range(50):
            began = clock()
            call()
            taken.append(clock() - began)
        check()
    return taken


def rank_main(rank: int, size: int, folder: str, seconds: float, results: Any) -> None:
    import torch
    import torch.distributed as dist

    import rankpact

    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) >= size:
        os.sched_setaffinity(0, {cpus[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    with rankpact.connect_from_torch() as world:
        group, control = world.group("bench"), world.group("control")
        mine = torch.arange(WIDTH, dtype=torch.int64) - rank
        expected = [slot - (size - 1) for slot in range(WIDTH)]
        tensor, row = mine.clone(), mine.tolist()
        last: list[list[int]] = [expected]

        def gloo() -> None:
            dist.all_reduce(tensor, op=dist.ReduceOp.MIN)

        def in_place() -> None:
            group.all_reduce_(tensor, "min", label="bench")

        def a_list() -> None:
            last[0] = group.all_reduce(row, "min", label="bench")

        def check() -> None:
            assert tensor.tolist() == expected and last[0] == expected
            tensor.copy_(mine)

        def agree(goes_on: bool) -> bool:
            return control.all_reduce([goes_on], "min") == [1]

        ways: dict[str, Callable[[], None]] = {"gloo": gloo, "rankpact, tensor": in_place, "rankpact, list": a_list}
        taken: dict[str, list[int]] = {name: [] for name in ways}
        for turn in range(TURNS + 1):
            for name, call in ways.items():
                tensor.copy_(mine)
                call()
                times = measured(call, check if call is not a_list else lambda: None, agree, seconds / TURNS)
                if turn:
                    taken[name] += times
        results.put({name: quantiles(times) for name, times in taken.items()})
    dist.destroy_process_group()


def quantiles(times: list[int]) -> dict[str, float]:
    times.sort()
    return {
        "rounds": len(times),
        "min": times[0] / 1e3,
        "p50": times[len(times) // 2] / 1e3,
        "p99": times[len(times) * 99 // 100] / 1e3,
        "max": times[-1] / 1e3,
    }


def compared(size: int, seconds: float) -> dict[str, dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results: Any = context.Queue()
        ranks = [context.Process(target=rank_main, args=(rank, size, folder, seconds, results)) for rank in range(size)]
        for process in ranks:
            process.start()
        told = [results.get(timeout=60 + 10 * seconds) for _ in ranks]
        for process in ranks:
            process.join()
    return {way: {figure: max(one[way][figure] for one in told) for figure in told[0][way]} for way in told[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="rankpact against torch's gloo: MIN of 8 int64")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--seconds", type=float, default=2, help="for each way and number of ranks")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: nothing to compare with (pip install torch)")
        return
    cpus = len(os.sched_getaffinity(0))
    rows = []
    print(f"{'ranks':>5}  {'way':<17} {'rounds':>8} {'min':>9} {'p50':>9} {'p99':>9} {'max':>10} {'gloo / p50':>11}")
    for size in map(int, arguments.ranks.split(",")):
        figures = compared(size, arguments.seconds)
        for way, one in figures.items():
            ratio = figures["gloo"]["p50"] / one["p50"]
            crowded = "*" if size > cpus else " "
            print(
                f"{size:>4}{crowded}  {way:<17} {one['rounds']:>8.0f} {one['min']:>9.2f} {one['p50']:>9.2f} "
                f"{one['p99']:>9.2f} {one['max']:>10.1f} {ratio:>10.0f}x"
            )
            rows.append({"ranks": size, "cpus": cpus, "way": way, "ratio": ratio, **one})
    print(f"{cpus} CPUs; *: more ranks than CPUs, so every round costs context switches")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"python": sys.version, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
