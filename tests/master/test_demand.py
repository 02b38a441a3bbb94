"""What lookups tell of the runs that many prompts share."""

from __future__ import annotations

from support.paper_cluster import PaperCluster, blocks_of, chain, chained_spec

from moonpool.schemas.messages import Probe, ProbedRun
from moonpool.schemas.packed import join_hashes
from moonpool.schemas.runs import split_runs

PROMPT = chain(1600)
RUNS = [
    ProbedRun(first, count, count, PROMPT[first + count - 1]) for first, count in split_runs(0, len(PROMPT))
]


def hits_of(cluster: PaperCluster) -> dict[tuple[bytes, bytes], float]:
    ((_, demand),) = cluster.core.shards.demands()
    return demand.hits(1)


def test_one_run_stands_for_all_and_each_gets_its_share() -> None:
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    cluster.commit("a", blocks_of(PROMPT))
    for _ in range(1000):
        cluster.ask(Probe(cluster.keyspace, RUNS))
    hits = hits_of(cluster)
    counts = {run.hashes: hits[cluster.keyspace, run.hashes] for run in RUNS}
    assert counts.pop(RUNS[0].hashes) == 1000
    assert sum(counts.values()) == 1000 * len(counts)
    assert all(700 < count < 1300 for count in counts.values()), counts


def test_runs_that_were_not_found_are_no_hits() -> None:
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    cluster.commit("a", blocks_of(PROMPT)[:64])
    for _ in range(100):
        cluster.ask(Probe(cluster.keyspace, RUNS))
    hits = hits_of(cluster)
    assert hits == {(cluster.keyspace, RUNS[0].hashes): 100}


def test_prompts_without_their_beginning_are_counted_too() -> None:
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    cluster.commit("a", blocks_of(PROMPT))
    for _ in range(10):
        cluster.ask(Probe(cluster.keyspace, RUNS[1:2]))
    hits = hits_of(cluster)
    assert hits == {(cluster.keyspace, join_hashes([RUNS[1].hashes])): 10}
