"""A process group that meets in a folder, which STAND_IN_GROUP names."""

import os
import pickle
import time
from pathlib import Path
from typing import Any


def get_rank(group: Any = None) -> int:
    return int(os.environ["STAND_IN_RANK"])


def get_world_size(group: Any = None) -> int:
    return int(os.environ["STAND_IN_SIZE"])


def all_gather_object(objects: list[Any], mine: Any, group: Any = None) -> None:
    folder = Path(os.environ["STAND_IN_GROUP"])
    written = folder / f"writing{get_rank()}"
    written.write_bytes(pickle.dumps(mine))
    written.rename(folder / f"rank{get_rank()}")
    for rank in range(len(objects)):
        theirs = folder / f"rank{rank}"
        while not theirs.exists():
            time.sleep(0.01)
        objects[rank] = pickle.loads(theirs.read_bytes())
