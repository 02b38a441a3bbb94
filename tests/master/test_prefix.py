"""PrefixSearch against the core: the same answer as all hashes would give, with few of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper_cluster import PaperCluster, blocks_of, chain, chained_spec
from support.soak import SOAK

from moonpool.master.core import MasterCore, Origin
from moonpool.master.policy_adaptive import AdaptiveCredit
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import (
    Describe,
    Description,
    Matched,
    Probe,
    Probed,
    ProbedRun,
    RegisterKeyspace,
    encode,
)
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.prefix import STRIDE_BLOCKS, PrefixSearch

CHAIN = chain(1100)
SPEC = chained_spec()


def search(cluster: PaperCluster, hashes: list[bytes]) -> tuple[int, int]:
    """(blocks found, messages sent)."""
    asked = PrefixSearch(SPEC, hashes)
    probed = cluster.ask(asked.probe(-1))
    assert isinstance(probed, Probed)
    total, gap = asked.gap(probed)
    if gap is None:
        return total, 1
    found = cluster.ask(gap)
    assert isinstance(found, Matched)
    return total + sum(found.ready), 2


@given(
    st.lists(st.integers(0, len(CHAIN) - 1), max_size=4),
    st.integers(1, len(CHAIN)),
    st.none() | st.integers(0, len(CHAIN) - 1),
    st.integers(1, 40),
)
@settings(derandomize=True, deadline=None, max_examples=60 * SOAK)
def test_it_finds_what_is_there(holes: list[int], asked: int, away: int | None, count: int) -> None:
    """`holes` are missing; `count` blocks from `away` on lie on a node that is suspect."""
    cluster = PaperCluster(SPEC)
    cluster.join("a")
    cluster.join("b")
    blocks = [block for block in blocks_of(CHAIN) if block.position not in holes]
    lost = range(0) if away is None else range(away, away + count)
    cluster.commit("a", [block for block in blocks if block.position not in lost])
    cluster.commit("b", [block for block in blocks if block.position in lost])
    if away is not None:
        cluster.disconnect("b")
    wanted = min([asked, *holes, *lost])
    found, messages = search(cluster, CHAIN[:asked])
    assert found == wanted
    assert messages == 1 or (wanted >= 64 and wanted < asked)
    if found:
        known = cluster.ask(Describe(cluster.keyspace, CHAIN[found - 1]))
        assert isinstance(known, Description)
        assert known.lease_ms > 0, "what was found is kept for the load"


def test_one_message_where_nothing_branches_off() -> None:
    cluster = PaperCluster(SPEC)
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN[:700]))
    assert search(cluster, CHAIN) == (700, 1)
    other = CHAIN[:690] + chain(400, "other")
    assert search(cluster, other) == (690, 1)
    cluster.commit("a", blocks_of(other[:693], 690))
    assert search(cluster, CHAIN) == (700, 2), "at the branch the master can't tell which one is meant"
    assert search(cluster, other) == (693, 2)
    assert search(cluster, CHAIN[:685] + chain(9, "third")) == (685, 1)
    leased = cluster.ask(Describe(cluster.keyspace, CHAIN[684]))
    assert isinstance(leased, Description)


def test_what_lies_behind_a_gap_is_not_looked_at() -> None:
    cluster = PaperCluster(SPEC)
    cluster.join("a")
    cluster.commit("a", [block for block in blocks_of(CHAIN[:1100]) if block.position != 500])
    probed = cluster.ask(PrefixSearch(SPEC, CHAIN[:1100]).probe(0))
    assert isinstance(probed, Probed)
    assert probed.ready == [64, 416, *[0] * (len(probed.ready) - 2)]
    behind = cluster.ask(Describe(cluster.keyspace, CHAIN[1023]))
    assert isinstance(behind, Description)
    assert behind.ready and not behind.lease_ms, "nobody can use it now"


def test_hashes_of_another_size_are_refused_with_a_sample_and_without() -> None:
    for mask in (0, -1):
        with pytest.raises(InvalidParams, match="16 bytes each"):
            PrefixSearch(SPEC, [*CHAIN[:9], bytes(17), bytes(15), *CHAIN[:9]]).probe(mask)


def test_few_bytes() -> None:
    prompt = chain(5000)
    whole = PrefixSearch(SPEC, prompt)
    assert len(encode(whole.probe(0x3FF))) < len(join_hashes(prompt)) / 16
    _, gap = whole.gap(Probed([64, 448, 96]))
    assert gap is not None and len(encode(gap)) < STRIDE_BLOCKS * 16 + 100


@pytest.mark.parametrize(
    "run",
    [
        ProbedRun(0, 0, 1, b""),
        ProbedRun(0, 2, 1, bytes(16)),
        ProbedRun(0, 2, 0, bytes(32)),
        ProbedRun(0, 65, 65, bytes(16)),
        ProbedRun(-1, 1, 1, bytes(16)),
        ProbedRun(0, 3, 2, bytes(33)),
        ProbedRun(1024, 513, 513, bytes(16)),
        ProbedRun(1500, 37, 37, bytes(16)),
        ProbedRun(1 << 31, 1, 1, bytes(16)),
        ProbedRun(512, 0, 1, b""),
        ProbedRun(512, 3, 2, bytes(33)),
    ],
)
def test_bad_runs_are_refused(run: ProbedRun) -> None:
    cluster = PaperCluster(SPEC)
    cluster.join("a")
    with pytest.raises(InvalidParams):
        cluster.ask(Probe(cluster.keyspace, [run]))


def test_the_policy_learns_from_the_sample_that_it_asked_for() -> None:
    policy = AdaptiveCredit()
    core = MasterCore(1, 1, MasterSettings(), policy)
    origin = Origin("", SPEC.tenant)
    core.handle(RegisterKeyspace(SPEC), 0.0, origin)
    mask = 0
    for second in range(30):
        probe = PrefixSearch(SPEC, chain(200, str(second))).probe(mask)
        probed = core.handle(probe, float(second), origin).reply
        assert isinstance(probed, Probed)
        mask = probed.sample_mask
        core.shards.work(0.0)
    names = [int.from_bytes(h[:8], "little") for second in range(30) for h in chain(200, str(second))]
    assert mask > 0, "thinner, the more names it knows"
    assert set(policy._history) == {name for name in names if not name & mask}


def test_a_sample_thinner_than_the_own_one_is_not_learnt_from() -> None:
    policy = AdaptiveCredit()
    policy.asked(np.array([8], dtype=np.uint64), 7, 1.0)
    policy.study()
    assert not policy._history
