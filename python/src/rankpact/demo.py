"""python -m rankpact.demo: four processes agree, and learn who makes another call."""

import multiprocessing
import sys
import tempfile

import rankpact

RANKS = 4


def run(rank: int, folder: str) -> None:
    with rankpact.connect(rank=rank, size=RANKS, rendezvous=f"file://{folder}", timeout=30) as world:
        tick = world.group("tick")

        # How many transfers have landed here, and here: everywhere have as many as the minimum says.
        landed = tick.all_reduce([12 + rank, 7 - rank], "min", label="landed")
        plan = tick.broadcast_object({"prefill": [3, 8]} if rank == 0 else None, label="plan")
        say(rank, f"landed everywhere {landed}, plan {plan}, by way of the {tick.path}")
        tick.barrier(label="agreed")

        # One rank takes another branch: all are told which call each of the two made, in that round.
        label = "vote" if rank != 2 else "count"
        try:
            tick.all_reduce([rank], "max", label=label)
        except rankpact.Mismatch as error:
            say(rank, str(error))


def say(rank: int, text: str) -> None:
    # In one write, so that the lines of the ranks do not mix.
    sys.stdout.write(f"rank {rank}: {text}\n")
    sys.stdout.flush()


def main() -> int:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run, args=(rank, folder)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
