"""Who lives, who is suspect, who is lost; report streams; the cut while somebody is away (design section 9)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.node_info import node_info
from support.paper_cluster import PaperCluster, blocks_of, chain, chained_spec
from support.soak import SOAK

from moonpool.master.nodes import FLAPS_MAX, Nodes
from moonpool.schemas.errors import InvalidParams, NotFound, StaleEpoch, StreamGap
from moonpool.schemas.messages import (
    Announce,
    Clear,
    ClusterMap,
    Done,
    Drain,
    GetClusterMap,
    Heartbeat,
    Match,
    Matched,
    NodeInfo,
    NodeState,
    PutItem,
    PutStart,
    PutStarted,
    Report,
)
from moonpool.schemas.packed import join_hashes

CHAIN = chain(8)


@pytest.fixture
def cluster() -> PaperCluster:
    return PaperCluster(chained_spec())


def ready(cluster: PaperCluster) -> int:
    reply = cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN))], 0))
    assert isinstance(reply, Matched)
    return reply.ready[0]


def state(cluster: PaperCluster, name: str) -> NodeState:
    cluster_map = cluster.ask(GetClusterMap())
    assert isinstance(cluster_map, ClusterMap)
    return next(entry.state for entry in cluster_map.nodes if entry.info.node == name)


def test_a_node_is_joining_until_its_inventory_is_complete(cluster: PaperCluster) -> None:
    cluster.join("a", inventory=False)
    assert state(cluster, "a") is NodeState.JOINING
    cluster.commit("a", blocks_of(CHAIN))
    assert ready(cluster) == 8, "matched as far as it is known"
    cluster.join("a")
    assert state(cluster, "a") is NodeState.LIVE


def test_silence_makes_suspect_then_lost(cluster: PaperCluster) -> None:
    cluster.join("a")
    cluster.join("b")
    cluster.commit("a", blocks_of(CHAIN[:3]))
    cluster.commit("b", blocks_of(CHAIN, 3))
    assert ready(cluster) == 8
    cluster.segments["b"].connected = False  # no more heartbeats
    cluster.advance(3)
    assert state(cluster, "b") is NodeState.LIVE
    cluster.advance(1)
    assert state(cluster, "b") is NodeState.SUSPECT
    assert ready(cluster) == 3, "cut at the first block without a live copy"
    cluster.heartbeat("b")
    assert ready(cluster) == 8, "live again, and nothing was forgotten"
    cluster.advance(31)
    assert state(cluster, "b") is NodeState.LOST
    assert ready(cluster) == 3
    assert cluster.core.status(cluster.now_s)["rows"] == 3
    with pytest.raises(NotFound):
        cluster.heartbeat("b")


def test_a_closed_connection_makes_suspect_at_once(cluster: PaperCluster) -> None:
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN))
    cluster.disconnect("a")
    assert state(cluster, "a") is NodeState.SUSPECT
    assert ready(cluster) == 0
    cluster.advance(10)
    cluster.join("a", inventory=False)
    assert state(cluster, "a") is NodeState.LIVE
    assert ready(cluster) == 8, "within the grace period its rows count before the inventory has come"


def test_the_third_time_in_ten_minutes_is_lost(cluster: PaperCluster) -> None:
    cluster.join("a")
    for _ in range(FLAPS_MAX - 1):
        cluster.disconnect("a")
        assert state(cluster, "a") is NodeState.SUSPECT
        cluster.join("a")
    cluster.disconnect("a")
    assert state(cluster, "a") is NodeState.LOST
    cluster.join("a")
    assert state(cluster, "a") is NodeState.LIVE
    cluster.advance(601)
    cluster.disconnect("a")
    assert state(cluster, "a") is NodeState.SUSPECT, "old ones don't count"


def test_a_lost_node_that_returns_keeps_what_it_names(cluster: PaperCluster) -> None:
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN))
    cluster.disconnect("a")
    cluster.advance(31)
    assert state(cluster, "a") is NodeState.LOST
    cluster.join("a")
    assert ready(cluster) == 8
    cluster.core.validate()


def test_hashes_that_lie_elsewhere_in_their_run_harm_nobody(cluster: PaperCluster) -> None:
    cluster.join("a")
    cluster.join("b")
    cluster.commit("a", blocks_of(CHAIN[:3]))
    cluster.disconnect("b")  # with a suspect node runs are walked
    shifted = [bytes([i]) * 16 for i in range(5)] + CHAIN[2:3]
    assert cluster.ask(Match(cluster.keyspace, [(0, join_hashes(shifted))])) == Matched([3])


def test_a_lost_node_is_cut_before_its_rows_are_swept(cluster: PaperCluster) -> None:
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN))
    for _ in range(2):
        cluster.disconnect("a")
        cluster.join("a")
    cluster.disconnect("a")
    assert cluster.core.status(cluster.now_s)["rows"] == 8, "nothing is swept before the next tick"
    assert ready(cluster) == 0
    cluster.advance(1)
    assert cluster.core.status(cluster.now_s)["rows"] == 0


def test_a_gap_is_refused_and_a_new_stream_mends_it(cluster: PaperCluster) -> None:
    segment = cluster.join("a")
    for stream, sequence in ((segment.stream, segment.sequence + 1), (99, segment.sequence), (99, 1)):
        with pytest.raises(StreamGap):
            cluster.ask(Report(segment.info.segment, stream, sequence, []))
    cluster.report("a")
    cluster.ask(Report(segment.info.segment, 99, 0, []))
    with pytest.raises(StreamGap):
        cluster.report("a")


def test_what_an_inventory_does_not_name_goes(cluster: PaperCluster) -> None:
    segment = cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN))
    del segment.held[0, CHAIN[5]]
    cluster.disconnect("a")
    cluster.join("a", inventory=False)
    cluster.report("a", *cluster.inventory("a"))
    assert ready(cluster) == 8
    cluster.join("a")
    assert ready(cluster) == 5
    cluster.core.validate()


def test_a_surplus_copy_is_dropped(cluster: PaperCluster) -> None:
    cluster.join("a")
    segment = cluster.join("b")
    cluster.commit("a", blocks_of(CHAIN))
    cluster.commit("b", blocks_of(CHAIN, 6))
    assert not segment.held, "the copy that the index has stays"
    cluster.report("b")
    assert ready(cluster) == 8


def test_a_copy_on_a_suspect_node_gives_way(cluster: PaperCluster) -> None:
    old = cluster.join("a")
    cluster.join("b")
    cluster.commit("a", blocks_of(CHAIN))
    cluster.disconnect("a")
    cluster.commit("b", blocks_of(CHAIN))
    assert ready(cluster) == 8
    cluster.join("a")
    assert not old.held, "what was replaced is surplus when it comes back"
    cluster.core.validate()


def test_a_copy_on_a_silent_node_gives_way_and_is_dropped(cluster: PaperCluster) -> None:
    """A node that is heard again goes on with its stream: no inventory would find what the index forgot."""
    silent = cluster.join("a")
    cluster.join("b")
    cluster.commit("a", blocks_of(CHAIN))
    for _ in range(4):
        cluster.advance(1, heartbeats=False)
        cluster.heartbeat("b")
    assert cluster.core.status(0)["nodes_suspect"] == 1
    cluster.commit("b", blocks_of(CHAIN[:3]))
    assert sorted(silent.held) == sorted((0, h) for h in CHAIN[3:])
    cluster.report("a")
    assert len(cluster.segments["b"].held) == 3
    assert ready(cluster) == 8
    cluster.core.validate()


def test_epochs(cluster: PaperCluster) -> None:
    segment = cluster.join("a")
    with pytest.raises(StaleEpoch):
        cluster.ask(Heartbeat(segment.info.segment, 8, 0))
    cluster.ask(Announce(segment.info, [], 12))
    assert cluster.core.epoch == 13, "more than what any node has seen of other masters"
    cluster.ask(Announce(segment.info, [], 13))
    assert cluster.core.epoch == 13, "that was this very master"
    cluster.ask(Heartbeat(segment.info.segment, 7, 0))
    for impossible in (-1, 1 << 62):
        with pytest.raises(InvalidParams, match="epoch_seen"):
            cluster.ask(Announce(segment.info, [], impossible))


def test_a_removal_that_waits_for_its_node_is_given_again_in_the_epoch_of_then(cluster: PaperCluster) -> None:
    """Nodes refuse orders of an epoch that has passed."""
    away = cluster.join("a")
    cluster.disconnect("a")
    cluster.ask(Clear(cluster.keyspace))
    cluster.ask(Announce(cluster.join("b").info, [], 12))
    cluster.join("a")
    assert [drop.epoch for drop in away.drops] == [13]


def test_a_bad_announcement_is_refused(cluster: PaperCluster) -> None:
    info = cluster.join("a").info
    empty = NodeInfo(**{name: getattr(info, name) for name in info.__struct_fields__} | {"segment": b""})
    with pytest.raises(InvalidParams):
        cluster.ask(Announce(empty, [], 0))


class NodesMachine(RuleBasedStateMachine):
    """States found from the whole history of each node, against those kept step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes(suspect_after_s=3.0, lost_after_s=30.0)
        self.now_s = 1000.0
        self.expected: dict[int, NodeState] = {}
        self.heard_s: dict[int, float] = {}
        self.flaps_s: dict[int, list[float]] = {}
        self.complete: set[int] = set()

    def info(self, number: int) -> NodeInfo:
        return node_info(f"n{number}", segment=bytes([number + 1]) * 8)

    def alive(self, number: int) -> NodeState:
        return NodeState.LIVE if number in self.complete else NodeState.JOINING

    def suspect(self, number: int) -> None:
        flaps = self.flaps_s.setdefault(number, [])
        flaps.append(self.now_s)
        often = sum(flap > self.now_s - 600 for flap in flaps) >= 3
        self.expected[number] = NodeState.LOST if often else NodeState.SUSPECT

    @rule(number=st.integers(0, 3))
    def announce(self, number: int) -> None:
        self.nodes.announce(self.info(number), self.now_s)
        if self.expected.get(number) is NodeState.LOST:
            self.complete.discard(number)
        self.heard_s[number] = self.now_s
        self.expected[number] = self.alive(number)

    @rule(number=st.integers(0, 3))
    def heard(self, number: int) -> None:
        if self.expected.get(number, NodeState.LOST) is NodeState.LOST:
            with pytest.raises(NotFound):
                self.nodes.heard(self.info(number).segment, self.now_s)
            return
        self.nodes.heard(self.info(number).segment, self.now_s)
        self.heard_s[number] = self.now_s
        self.expected[number] = self.alive(number)

    @rule(number=st.integers(0, 3))
    def closed(self, number: int) -> None:
        known = self.expected.get(number, NodeState.LOST)
        lost = self.nodes.disconnected(self.info(number).segment, self.now_s)
        if known in (NodeState.JOINING, NodeState.LIVE):
            self.suspect(number)
        assert (lost is not None) == (known is not NodeState.LOST and self.is_lost(number))

    def is_lost(self, number: int) -> bool:
        return self.expected.get(number) is NodeState.LOST

    @rule(number=st.integers(0, 3))
    def inventory(self, number: int) -> None:
        node = self.nodes.get(self.info(number).segment)
        if node is not None and self.expected[number] in (NodeState.JOINING, NodeState.LIVE):
            self.nodes.inventory_complete(node, 0, [0])
            self.complete.add(number)
            self.expected[number] = NodeState.LIVE

    @rule(seconds=st.sampled_from((0.5, 2.0, 4.0, 20.0, 31.0, 700.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        before = dict(self.expected)
        lost = self.nodes.tick(self.now_s)
        for number, known in before.items():
            silent_s = self.now_s - self.heard_s[number]
            if known in (NodeState.JOINING, NodeState.LIVE) and silent_s > 3:
                self.suspect(number)
            elif known is NodeState.SUSPECT and silent_s > 30:
                self.expected[number] = NodeState.LOST
        newly = [n for n in self.expected if self.is_lost(n) and before[n] is not NodeState.LOST]
        assert {node.info.node for node in lost} == {f"n{number}" for number in newly}

    @rule()
    def sweep_and_forget(self) -> None:
        for index in self.nodes.unswept():
            self.nodes.swept(index)
        for node in self.nodes.forgettable(self.now_s):
            self.nodes.forget(node)
            number = node.info.segment[0] - 1
            del self.expected[number], self.heard_s[number]
            self.flaps_s.pop(number, None)
            self.complete.discard(number)

    @invariant()
    def agrees(self) -> None:
        self.nodes.validate()
        assert {entry.info.node: entry.state for entry in self.nodes.entries()} == {
            f"n{number}": known for number, known in self.expected.items()
        }
        away = [known for known in self.expected.values() if known is NodeState.SUSPECT]
        assert self.nodes.impaired == bool(away or self.nodes.unswept())


TestNodesMachine = NodesMachine.TestCase
TestNodesMachine.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=100 * SOAK,
    stateful_step_count=80,
    suppress_health_check=list(HealthCheck),
)


def test_a_draining_node_gets_no_new_puts(cluster: PaperCluster) -> None:
    def placed() -> bytes:
        item = PutItem(cluster.keyspace, 0, 0, b"", CHAIN[0], 4096)
        cluster.advance(1)  # the last promise is over
        reply = cluster.ask(PutStart([item], 1), "host-a")
        assert isinstance(reply, PutStarted)
        return reply.segments[0]

    def draining() -> list[bool]:
        reply = cluster.ask(GetClusterMap())
        assert isinstance(reply, ClusterMap)
        return [entry.draining for entry in reply.nodes]

    for name in ("a", "b"):
        cluster.join(name)
    cluster.commit("a", blocks_of(CHAIN[1:], 0))
    assert placed() == cluster.segments["a"].info.segment, "the writer's own host"
    assert cluster.ask(Drain("a")) == Done(1)
    assert cluster.ask(Drain("a")) == Done(0)
    assert placed() == cluster.segments["b"].info.segment
    assert draining() == [True, False]
    assert cluster.core.status(cluster.now_s)["nodes_draining"] == 1
    found = cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[1:]))]))
    assert isinstance(found, Matched)
    assert found.ready == [len(CHAIN) - 1], "what it holds is served on"
    cluster.disconnect("a")
    cluster.join("a")
    assert placed() == cluster.segments["b"].info.segment, "a node that starts again is still to be emptied"
    assert cluster.ask(Drain("a", False)) == Done(1)
    assert placed() == cluster.segments["a"].info.segment
    with pytest.raises(NotFound, match="node 'c'"):
        cluster.ask(Drain("c"))
