"""A scheduler's tick with rankpact in place of a gloo all_reduce(MIN).

Start it with any launcher:

    rankpact run -n 4 -- python scheduler_tick.py
    torchrun --nproc-per-node 4 scheduler_tick.py
"""

import random

import rankpact

# What it was:
#
#     counts = torch.tensor([writes, loads, hits], dtype=torch.int64)
#     dist.all_reduce(counts, op=dist.ReduceOp.MIN, group=cpu_group)
#     writes, loads, hits = counts.tolist()
#
# and a second all_reduce(MAX) for the votes. Here both are one round, and a rank that skips it is named.


class Scheduler:
    """One rank's scheduler: how many transfers have finished here differs from rank to rank."""

    def __init__(self, tick: rankpact.Group) -> None:
        self._tick = tick
        self._random = random.Random(tick.rank)
        self._finished = [0, 0]
        self._applied = [0, 0]

    def step(self) -> None:
        for kind, _ in enumerate(self._finished):
            self._finished[kind] += self._random.randrange(3)
        is_out_of_time = self._random.random() < 0.01

        *everywhere, anybody_late = self._tick.all_reduce(
            [*self._finished, is_out_of_time], ["min", "min", "max"], label="tick"
        )
        self._apply(everywhere, drop=bool(anybody_late))

    def _apply(self, counts: list[int], drop: bool) -> None:
        """Every rank is here with the same arguments, and so its tables stay the same."""
        self._applied = counts
        if drop:
            self._finished = list(counts)

    @property
    def applied(self) -> list[int]:
        return self._applied


def main() -> None:
    with rankpact.connect() as world:
        tick = world.group("tick", timeout=10.0)
        scheduler = Scheduler(tick)
        for _ in range(1000):
            scheduler.step()
        applied = tick.all_gather(scheduler.applied, label="check")
        assert all(theirs == applied[0] for theirs in applied), applied
        if world.rank == 0:
            print(f"1000 ticks of {world.size} ranks by way of the {tick.path}: {applied[0]} applied everywhere")


if __name__ == "__main__":
    main()
