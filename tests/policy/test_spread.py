"""How a trace spreads over shards: what the benchmark counts."""

from __future__ import annotations

import pytest

from moonpool.benchmarks.replay.trace import Request
from moonpool.benchmarks.spread import WAYS, doubling, every, spread
from moonpool.schemas.runs import run_end


def requests(count: int, shared: int, own: int) -> list[Request]:
    """Prompts of so many shared trace blocks and so many of their own."""
    return [
        Request(float(i), 1, 1, [*range(shared), *range(1000 * (i + 1), 1000 * (i + 1) + own)])
        for i in range(count)
    ]


def test_whole_chains_of_one_beginning_are_in_one_shard() -> None:
    found = spread(requests(50, 1, 4), WAYS["whole chains"])
    assert found == (1.0, 1.0, 1.0, 16.0)


def test_runs_and_blocks_are_counted() -> None:
    found = spread(requests(400, 2, 30), run_end)  # the shared 64 blocks, then 960 that are its own
    assert found.runs == 3.0
    assert found.lookups == pytest.approx(1.0 + 2 / 16, abs=0.05)
    assert found.blocks < 1.5, "what is one's own is spread"


@pytest.mark.parametrize("position", [0, 5, 31, 32, 63, 64, 100, 511, 512, 600, 1024, 5000])
def test_ways_of_cutting_go_on(position: int) -> None:
    for name, end_of in WAYS.items():
        assert end_of(position) > position, name
    assert doubling(32, 512)(position) - position <= 512 and every(64)(position) % 64 == 0
