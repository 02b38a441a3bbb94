"""The replay: its numbers are what their definitions say, in the real index too."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache
from itertools import combinations, takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from moonpool.benchmarks.replay.families import FAMILIES, generate
from moonpool.benchmarks.replay.paper_pool import PaperPool, block_hash
from moonpool.benchmarks.replay.plot import page
from moonpool.benchmarks.replay.replay import Row, pool_hits, replay
from moonpool.benchmarks.replay.rivals import optimum_hits, s3fifo_hits
from moonpool.benchmarks.replay.trace import Request, Trace, read_trace, write_trace
from moonpool.master.eviction import LeastRecentlyUsed
from moonpool.schemas.errors import ConfigError, InvalidParams
from moonpool.store_client.cli.main import app

SMALL = Path(__file__).parent / "data" / "chat_small.jsonl"


def naive_lru(trace: Trace, capacity: int) -> int:
    """Leading blocks that are there, then all are used, deepest first; the oldest leave."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in trace:
        hits += sum(1 for _ in takewhile(held.__contains__, request.hash_ids))
        for block in reversed(request.hash_ids):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


def best_hits(trace: Trace, capacity: int) -> int:
    """By trying every choice of what to keep."""

    @cache
    def best(number: int, held: frozenset[int]) -> int:
        if number == len(trace):
            return 0
        blocks = trace[number].hash_ids
        hits = sum(1 for _ in takewhile(held.__contains__, blocks))
        there = held | set(blocks)
        kept = combinations(sorted(there), min(capacity, len(there)))
        return hits + max(best(number + 1, frozenset(choice)) for choice in kept)

    return best(0, frozenset())


@st.composite
def tiny_traces(draw: st.DrawFn) -> list[Request]:
    """Requests over a tree of blocks: block b hangs on block b // 2."""
    deepest = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    requests = []
    for second, block in enumerate(deepest):
        path = [block]
        while path[-1] > 1:
            path.append(path[-1] // 2)
        requests.append(Request(second * 10_000, len(path), 1, path[::-1]))
    return requests


@given(tiny_traces(), st.integers(1, 5))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_optimum_is_the_best_choice(trace: list[Request], capacity: int) -> None:
    assert optimum_hits(trace, capacity) == best_hits(trace, capacity)


@given(tiny_traces(), st.integers(4, 7))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_the_index_under_lru_is_lru(trace: list[Request], capacity: int) -> None:
    assert pool_hits(trace, capacity, LeastRecentlyUsed()) == naive_lru(trace, capacity)


def test_the_committed_trace() -> None:
    trace = read_trace(SMALL)
    blocks = sum(len(request.hash_ids) for request in trace)
    ratios = {row.policy: row.prefix_hit_ratio for row in replay("small", trace, [500], POLICIES)}
    assert ratios["lru"] == pytest.approx(naive_lru(trace, 500) / blocks, abs=0.002)
    assert ratios["lru"] * 1.03 < ratios["default"] < ratios["optimum"]
    assert ratios["s3fifo"] < ratios["optimum"]


POLICIES = ("default", "lru", "s3fifo", "optimum")


def test_a_pool_that_holds_everything_misses_only_what_is_new() -> None:
    trace = generate("prompts", requests=300)
    seen: set[int] = set()
    ceiling = 0
    for request in trace:
        ceiling += sum(1 for _ in takewhile(seen.__contains__, request.hash_ids))
        seen.update(request.hash_ids)
    assert pool_hits(trace, len(seen), None) == ceiling
    assert s3fifo_hits(trace, 20 * len(seen)) == ceiling
    assert optimum_hits(trace, len(seen)) == ceiling


def test_the_index_stays_valid_and_within_its_capacity() -> None:
    pool = PaperPool(300, None)
    for request in generate("agentic", seed=2, requests=60):
        pool.serve([block_hash(block) for block in request.hash_ids][:280], request.timestamp / 1000)
        pool.validate()


@pytest.mark.parametrize("capacity", [1000, 3000])
def test_a_pool_of_many_nodes_is_as_good_as_one(capacity: int) -> None:
    trace = generate("prompts", seed=3, requests=600)
    one = pool_hits(trace, capacity, None)
    assert one > 0.9 * pool_hits(trace, capacity, None, nodes=4) > 0.9 * 0.9 * one


def test_nodes_of_a_pool_on_paper_keep_to_their_sizes() -> None:
    pool = PaperPool(302, None, nodes=3)
    for request in generate("agentic", seed=2, requests=60):
        pool.serve([block_hash(block) for block in request.hash_ids][:280], request.timestamp / 1000)
    pool.validate()
    assert [node.stored for node in pool._nodes.values()] == [101, 101, 100]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_depend_on_their_seed_alone(family: str) -> None:
    trace = generate(family, seed=1, requests=120)
    assert trace == generate(family, seed=1, requests=120)
    assert trace != generate(family, seed=2, requests=120)
    assert len(trace) == 120
    assert [request.timestamp for request in trace] == sorted(request.timestamp for request in trace)
    parents: dict[int, int] = {}  # an id names a prefix, so it always follows the same one
    for request in trace:
        for above, block in zip([-1, *request.hash_ids], request.hash_ids, strict=False):
            assert parents.setdefault(block, above) == above


def test_agents_are_as_promised() -> None:
    trace = generate("agentic", requests=4000)
    asked = sum(request.input_length for request in trace)
    assert asked / sum(request.output_length for request in trace) == pytest.approx(131, rel=0.05)
    assert 170_000 < max(request.input_length for request in trace) <= 180_000
    seen: set[int] = set()
    hits = 0
    for request in trace:
        hits += sum(1 for _ in takewhile(seen.__contains__, request.hash_ids))
        seen.update(request.hash_ids)
    assert hits / sum(len(request.hash_ids) for request in trace) == pytest.approx(0.94, abs=0.01)


def test_traces_survive_the_file(tmp_path: Path) -> None:
    trace = generate("phases", requests=40)
    write_trace(tmp_path / "trace.jsonl", trace)
    assert read_trace(tmp_path / "trace.jsonl") == trace


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no request"),
        ('{"timestamp": 1}', "trace.jsonl:1"),
        ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}\nnonsense', "trace.jsonl:2"),
        ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["a"]}', "hash_ids"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_trace(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "missing")


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidParams, match="policy is 'belady'; allowed: default"):
        list(replay("x", [], [1], ["belady"]))
    with pytest.raises(InvalidParams, match="capacity_blocks is 0"):
        list(replay("x", [], [0], ["lru"]))
    with pytest.raises(InvalidParams, match="family"):
        generate("none")


def test_the_command(tmp_path: Path) -> None:
    html = tmp_path / "plot.html"
    arguments = [
        "replay",
        str(SMALL),
        "--capacity-blocks",
        "500,1500",
        "--policy",
        "s3fifo,optimum",
        "--json",
    ]
    result = CliRunner().invoke(app, [*arguments, "--html", str(html)])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1] if result.stdout else "")["rows"]
    assert [(row["trace"], row["capacity_blocks"], row["policy"]) for row in rows] == [
        ("chat_small", 500, "s3fifo"),
        ("chat_small", 500, "optimum"),
        ("chat_small", 1500, "s3fifo"),
        ("chat_small", 1500, "optimum"),
    ]
    assert all(0 < row["prefix_hit_ratio"] < 1 for row in rows)
    text = html.read_text()
    assert text == page([Row(**row) for row in rows])
    assert text.count("<polyline") == 2
