"""What a call from Python costs above the same call from Rust: MIN of a list of 8 ints.

    python above_rust.py --program target/release/rankpact [--rounds 200000] [--turns 5]

Two ranks with a CPU each, in turns with `rankpact bench`; and a group of one rank, where nothing is waited for, so that
all of it is the way from Python and back. Nanoseconds a round.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH = 1000


def rank_main(rank: int, size: int, folder: str, rounds: int, results: Any) -> None:
    import rankpact

    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    with rankpact.connect(rank=rank, size=size, rendezvous=f"file://{folder}") as world:
        reduce = world.group("bench").all_reduce
        for kind, row in (("small", [3, 1, 4, 1, 5, 9, 2, 6]), ("large", [10**12 + slot for slot in range(8)])):
            batch, batches = range(BATCH), []
            for _ in range(rounds // BATCH + 5):
                began = time.perf_counter_ns()
                for _ in batch:
                    reduce(row, "min", label="bench")
                batches.append((time.perf_counter_ns() - began) / BATCH)
            # The first ones warm up.
            if rank == 0:
                results.put((kind, statistics.median(batches[5:])))


def in_python(size: int, rounds: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results: Any = context.Queue()
        ranks = [context.Process(target=rank_main, args=(rank, size, folder, rounds, results)) for rank in range(size)]
        for process in ranks:
            process.start()
        told = dict(results.get(timeout=120) for _ in range(2))
        for process in ranks:
            process.join()
    return told


def in_rust(program: str, rounds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [program, "bench", "--ranks", "2", "--widths", "8", "--rounds", str(rounds)]
        subprocess.run([*command, "--json", report], check=True, capture_output=True)
        rows = json.loads(report.read_text())["rows"]
    (p50,) = [row["p50_ns"] for row in rows if row["path"] == "table"]
    return float(p50)


def main() -> None:
    parser = argparse.ArgumentParser(description="Python calls above Rust calls")
    parser.add_argument("--program", default="target/release/rankpact")
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    if not Path(arguments.program).exists():
        sys.exit(f"{arguments.program} is not there: cargo build --release -p rankpact")
    above: dict[str, list[float]] = {"small": [], "large": []}
    for turn in range(arguments.turns):
        rust = in_rust(arguments.program, arguments.rounds)
        two, one = in_python(2, arguments.rounds), in_python(1, arguments.rounds)
        for kind, figures in above.items():
            figures.append(two[kind] - rust)
            print(
                f"turn {turn}, {kind} ints: Rust, 2 ranks {rust:.0f}; Python, 2 ranks {two[kind]:.0f}, "
                f"above Rust {figures[-1]:.0f}; Python, 1 rank {one[kind]:.0f}",
                flush=True,
            )
    for kind, figures in above.items():
        print(
            f"{kind} ints: {statistics.median(figures):.0f} ns above the Rust call in the median of {len(figures)} turns, "
            f"{min(figures):.0f} in the best: other work on these CPUs only adds to it"
        )


if __name__ == "__main__":
    main()
