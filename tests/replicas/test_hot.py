"""What many prompts begin with gets another copy while they do, and loses it afterwards."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, chained_spec
from support.soak import SOAK

from moonpool.master.replicas import hot
from moonpool.master.replicas.hot import Heat
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import Probe, ProbedRun
from moonpool.schemas.packed import join_hashes
from moonpool.schemas.runs import split_runs
from moonpool.store_client.prefix import STRIDE_BLOCKS

TRUNK = chain(6, "trunk")
TAILS = [chain(8, name)[6:] for name in ("one", "two")]


class Crowd:
    """Two prompts that share TRUNK, on host a; a second node there, and another host."""

    def __init__(self, hits_per_min: int = 60, trunk: list[bytes] = TRUNK) -> None:
        self.cluster = PaperCluster(chained_spec(2), MasterSettings(hot_hits_per_min=hits_per_min))
        for name, host in (("a", "host-a"), ("neighbour", "host-a"), ("far", "host-far")):
            self.cluster.join(name, host)
        self.prompts = [trunk + tail for tail in TAILS]
        for prompt in self.prompts:
            self.cluster.commit("a", [one for one in blocks_of(prompt) if not self.held("a", one.block_hash)])

    def held(self, name: str, block_hash: bytes) -> bool:
        return any(h == block_hash for _, h in self.cluster.segments[name].held)

    def copies(self, name: str) -> set[bytes]:
        return {h for _, h in self.cluster.segments[name].held}

    def pass_time(self, seconds: int, asks_a_second: int) -> None:
        for second in range(seconds):
            for number in range(asks_a_second):
                prompt = self.prompts[(second + number) % 2]
                runs = [probed(prompt, first, count) for first, count in split_runs(0, len(prompt))]
                self.cluster.ask(Probe(self.cluster.keyspace, runs))
            self.cluster.advance(1)
            for name in self.cluster.segments:
                self.cluster.carry_out(name)
                self.cluster.report(name)
            self.cluster.core.validate()


def test_a_hot_prefix_gains_a_copy_and_loses_it() -> None:
    crowd = Crowd()
    crowd.pass_time(30, 2)
    assert crowd.copies("far") == set(TRUNK), "what both prompts share, and nothing else"
    assert not crowd.copies("neighbour"), "readers of that host have a copy there"
    assert crowd.cluster.core.status(crowd.cluster.now_s)["hot_prefixes"] == 1
    crowd.pass_time(30, 2)
    assert crowd.copies("far") == set(TRUNK)
    crowd.pass_time(int(hot.COLD_AFTER_S) + 15, 0)
    assert not crowd.copies("far")
    assert crowd.copies("a") == set(TRUNK) | {h for tail in TAILS for h in tail}, "the wanted copy went"
    assert crowd.cluster.core.status(crowd.cluster.now_s)["hot_prefixes"] == 0


def test_what_is_hotter_gets_more_copies() -> None:
    crowd = Crowd()
    for name in ("further", "furthest"):
        crowd.cluster.join(name, f"host-{name}")
    others = ("far", "further", "furthest")
    crowd.pass_time(30, 2)
    assert sum(crowd.copies(name) == set(TRUNK) for name in others) == 2, "twice as hot as is enough for one"
    crowd.pass_time(30, 8)
    assert all(crowd.copies(name) == set(TRUNK) for name in others)
    crowd.pass_time(int(hot.COLD_AFTER_S) + 15, 0)
    assert not any(crowd.copies(name) for name in others)
    assert crowd.copies("a") == set(TRUNK) | {h for tail in TAILS for h in tail}


def test_runs_further_on_are_copied_too() -> None:
    trunk = chain(170, "long")
    crowd = Crowd(trunk=trunk)
    crowd.pass_time(60, 4)
    assert crowd.copies("far") == set(trunk), (
        "what both prompts share of their first two runs, and nothing else"
    )
    assert crowd.cluster.core.status(crowd.cluster.now_s)["hot_prefixes"] == 2
    crowd.pass_time(int(hot.COLD_AFTER_S) + 15, 0)
    assert not crowd.copies("far")


def test_what_is_asked_for_now_and_then_is_not_hot() -> None:
    crowd = Crowd(hits_per_min=90)
    crowd.pass_time(200, 1)
    assert not crowd.copies("far")


def test_never_means_never() -> None:
    crowd = Crowd(hits_per_min=0)
    crowd.pass_time(30, 5)
    assert not crowd.copies("far")


def test_copies_of_what_is_hot_take_a_small_share() -> None:
    crowd = Crowd(hits_per_min=90)
    info = crowd.cluster.segments["far"].info
    small = hot.HOT_SHARE
    try:
        hot.HOT_SHARE = 5 * BLOCK_BYTES / (3 * info.capacity_bytes)
        crowd.pass_time(30, 2)
    finally:
        hot.HOT_SHARE = small
    assert sum(map(len, crowd.cluster.segments["far"].held.values())) == 5


def probed(prompt: list[bytes], first: int, count: int) -> ProbedRun:
    """As clients ask: the first run by all of its hashes, later ones by every 64th and the last."""
    stride = 1 if first == 0 else STRIDE_BLOCKS
    named = [prompt[min(at + stride, first + count) - 1] for at in range(first, first + count, stride)]
    return ProbedRun(first, count, stride, join_hashes(named))


@settings(derandomize=True, deadline=None, max_examples=100 * SOAK)
@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.lists(st.integers(0, 200), min_size=3, max_size=3)), max_size=20
    )
)
def test_heat_is_bounded_and_ends(looks: list[tuple[int, list[int]]]) -> None:
    heat, now_s, cold = Heat(60), 0.0, set[tuple[bytes, bytes]]()
    for passed_s, counts in looks:
        now_s += passed_s
        hits = {(b"k", bytes([at])): float(count) for at, count in enumerate(counts) if count}
        ended = heat.look(hits, now_s)
        heat.validate()
        assert not set(ended) & heat.hot.keys()
        cold |= set(ended)
        assert all(until_s > now_s for until_s in heat.hot.values())
    last = set(heat.look({}, now_s + 2 * hot.COLD_AFTER_S))
    assert not heat.hot and last <= {(b"k", bytes([at])) for at in range(3)}
