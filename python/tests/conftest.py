"""What all tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rankpact  # noqa: E402


@pytest.fixture
def world(tmp_path: Path) -> Iterator[rankpact.World]:
    """A world of this process alone."""
    tmp_path.chmod(0o700)
    with rankpact.connect(rank=0, size=1, rendezvous=f"file://{tmp_path}") as world:
        yield world
