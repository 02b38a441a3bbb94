"""The simulator: its pool obeys the real cores, its queues are what they say, its results are what they must be."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from moonpool.benchmarks.simulate.costs import Costs, PerBlock, calibrate
from moonpool.benchmarks.simulate.experiments import Plan, routing, scale, storm
from moonpool.benchmarks.simulate.pool import HASH_BYTES, PaperPool
from moonpool.benchmarks.simulate.stations import Desk, PrefixCache, Station
from moonpool.benchmarks.simulate.world import STICKY
from moonpool.store_client.cli.main import app

COSTS = Costs(
    match=PerBlock(4e-6, 3e-9),
    locate=PerBlock(25e-6, 5e-8),
    renew=PerBlock(6e-6, 0.0),
    put_start=PerBlock(20e-6, 1e-6),
    report=PerBlock(3e-4, 1.5e-6),
)


def chain_of(name: int, blocks: int) -> list[bytes]:
    return [Random(f"{name} {position}").randbytes(HASH_BYTES) for position in range(blocks)]


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.data())
def test_the_paper_pool_hits_what_it_was_given_and_loses_what_it_lost(data: st.DataObject) -> None:
    pool = PaperPool(hosts=3, host_blocks=150)
    now_s = 1.0
    for _ in range(data.draw(st.integers(1, 12))):
        now_s += 5.0
        chain = chain_of(data.draw(st.integers(0, 4)), data.draw(st.integers(1, 90)))
        host = pool.hosts[data.draw(st.integers(0, 2))]
        if host.alive and data.draw(st.integers(0, 5)) == 0:
            pool.lose(host, now_s)
        elif not host.alive:
            pool.join(host, now_s)
        else:
            pool.put(chain, host, now_s)
            hit = pool.match(chain, host, now_s)
            assert hit == sum(pool.locate(chain, 0, hit, host, now_s).values())
            if all(other.alive for other in pool.hosts):
                assert hit > 0, "nothing of what was just written is there"
        pool.validate()


def test_a_lost_hosts_blocks_are_no_hits_and_come_back_with_it() -> None:
    pool = PaperPool(hosts=2, host_blocks=500)
    first, second = pool.hosts
    chain = chain_of(0, 100)
    pool.put(chain, first, 1.0)
    pool.lose(first, 2.0)
    assert pool.match(chain, second, 2.0) == 0
    pool.join(first, 3.0)
    assert pool.match(chain, second, 3.0) == 100


def test_a_station_does_one_thing_after_the_other() -> None:
    station = Station()
    assert [station.take(1.0, 2.0), station.take(1.5, 1.0), station.take(9.0, 1.0)] == [3.0, 4.0, 10.0]
    assert station.busy_s == 4.0


def test_a_match_waits_for_one_slice_of_other_work_at_most() -> None:
    desk = Desk(slice_s=0.002)
    desk.later(0.0, 1.0)
    assert desk.first(0.5, 0.001) == pytest.approx(0.503)
    assert desk.first(0.5, 0.001) == pytest.approx(0.504), (
        "served behind the first, not behind a second slice"
    )
    assert desk.first(5.0, 0.001) == pytest.approx(5.001), "the rest was done meanwhile"
    assert desk.take(6.0, 1.0) == pytest.approx(7.0)
    assert desk.first(6.5, 0.001) == pytest.approx(6.503), "before the rest of another request"
    assert desk.take(6.6, 0.1) == pytest.approx(7.101), "which the match has made later"


def test_a_prefix_cache_keeps_what_was_used_last() -> None:
    cache = PrefixCache(4)
    cache.use([b"a", b"b", b"c"])
    cache.use([b"a", b"x", b"y"])
    assert cache.prefix([b"a", b"b", b"c"]) == 2, "of the older chain its deepest block goes first"
    assert cache.prefix([b"a", b"x", b"y"]) == 3


def test_with_the_pool_any_number_of_engines_hits_what_endless_memory_would() -> None:
    rows = list(routing(COSTS, Plan([1], seconds=15.0)))
    with_pool = [row for row in rows if row.phase == "pool"]
    without = [row for row in rows if row.phase == "no pool"]
    assert all(row.ceiling - row.hit_ratio < 0.02 for row in with_pool)
    assert without[-1].hit_ratio < without[0].hit_ratio - 0.2
    assert without[-1].hit_ratio < with_pool[-1].hit_ratio - 0.5


def test_more_engines_are_more_work_and_a_storm_passes() -> None:
    small, large = scale(COSTS, Plan([2, 20], seconds=6.0))
    assert large.master_load > 3 * small.master_load
    phases = {row.phase: row for row in storm(COSTS, Plan([10], seconds=6.0))}
    assert phases["down"].hit_ratio < phases["before"].hit_ratio
    assert phases["again"].hit_ratio > phases["lost"].hit_ratio
    sticky = {row.phase: row for row in storm(COSTS, Plan([10], seconds=6.0, routing=STICKY))}
    assert sticky["down"].hit_ratio > phases["down"].hit_ratio + 0.1, "a session's blocks lie on one host"


def test_calibration_finds_costs() -> None:
    costs = calibrate()
    for line in (costs.match, costs.locate, costs.put_start, costs.report):
        assert 0 < line.of(4000) < 1.0


def test_two_measured_points_make_a_line() -> None:
    assert PerBlock.through(3.0, 2.0, 10) == PerBlock(1.0, 0.1)
    assert PerBlock.through(2.0, 2.5, 10) == PerBlock(2.5, 0.0), "more blocks never cost less: that was noise"
    assert PerBlock.through(3.0, 1.0, 10) == PerBlock(0.0, 0.2)


def test_the_command_prints_json_and_refuses_what_it_does_not_know() -> None:
    done = CliRunner().invoke(app, ["simulate", "scale", "--engines", "2", "--seconds", "2", "--json"])
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["rows"][0]["engines"] == 2
    assert "match" in document["costs"]
    refused = CliRunner().invoke(app, ["simulate", "nosuch"])
    assert "routing, scale, storm" in str(refused.exception)
    refused = CliRunner().invoke(app, ["simulate", "storm", "--routing", "random"])
    assert "round_robin, sticky" in str(refused.exception)
