"""Remove, clear and the confirmations of nodes."""

from __future__ import annotations

import pytest
from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, blocks_of, chain, chained_spec, flat_spec

from moonpool.master import removals
from moonpool.schemas.errors import KeyspaceUnknown, NotFound, Overloaded
from moonpool.schemas.framing import FRAME_BYTES_MAX
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    Clear,
    Describe,
    DescribeKeyspace,
    Drop,
    DropList,
    Entries,
    InventoryEnd,
    KeyspaceFacts,
    KeyspaceRegistered,
    Match,
    Matched,
    Pin,
    RegisterKeyspace,
    Remove,
    Removed,
    encode,
)
from moonpool.schemas.packed import join_hashes

CHAIN = chain(30)


def made(*names: str) -> PaperCluster:
    cluster = PaperCluster(chained_spec())
    for name in names or ("a",):
        cluster.join(name)
    return cluster


def removed(cluster: PaperCluster, hashes: list[bytes], force: bool = False) -> Removed:
    reply = cluster.ask(Remove(cluster.keyspace, join_hashes(hashes), force))
    assert isinstance(reply, Removed)
    cluster.core.validate()
    return reply


def test_an_inner_row_takes_what_hangs_on_it() -> None:
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN[:10]))
    cluster.commit("b", blocks_of(CHAIN, 10))
    cluster.commit("b", [Block(b"fork" * 4, 5, CHAIN[4])])
    assert removed(cluster, [CHAIN[5]]).count == 25
    assert cluster.core.status(0)["rows"] == 6
    assert sorted(cluster.segments["b"].held) == [(0, b"fork" * 4)]
    assert removed(cluster, [CHAIN[4], CHAIN[4]]).count == 2


def test_leased_rows_stay_unless_forced() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN))]))
    assert removed(cluster, [CHAIN[3]]) == Removed(0, 1, [])
    assert removed(cluster, [CHAIN[3]], force=True) == Removed(27, 0, [])


def test_a_dry_run_says_what_the_removal_then_says() -> None:
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN[:10]))
    cluster.commit("b", blocks_of(CHAIN, 10))
    asked = Remove(
        cluster.keyspace, join_hashes([CHAIN[5], CHAIN[7], CHAIN[2], b"nowhere." * 2]), dry_run=True
    )
    outcome = cluster.outcome(asked)
    assert (outcome.reply, outcome.pushes, outcome.awaits) == (Removed(28, 0, []), [], ())
    assert cluster.ask(Clear(cluster.keyspace, dry_run=True)) == Removed(30, 0, [])
    cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN))]))
    assert cluster.ask(Remove(cluster.keyspace, CHAIN[3], dry_run=True)) == Removed(0, 1, [])
    assert cluster.core.status(0)["rows"] == 30
    cluster.core.validate()
    assert removed(cluster, [CHAIN[5], CHAIN[7], CHAIN[2]], force=True).count == 28


def test_a_dry_run_of_one_rank() -> None:
    cluster = PaperCluster(flat_spec(world=2))
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN[:3]))
    asked = Remove(cluster.keyspace, join_hashes(CHAIN[:2]), rank=1, dry_run=True)
    assert cluster.outcome(asked).reply == Removed(2, 0, [])
    assert cluster.core.status(0)["copies"] == 6


def test_how_much_there_is_of_a_keyspace() -> None:
    cluster = PaperCluster(chained_spec(world=2))
    cluster.join("a")
    cluster.commit("a", blocks_of(CHAIN[:5]))
    cluster.commit("a", blocks_of(CHAIN[:6], 5), ranks=[1])
    cluster.ask(Pin(cluster.keyspace, CHAIN[4]))
    assert cluster.ask(DescribeKeyspace(cluster.keyspace)) == KeyspaceFacts(6, 11, 11 * BLOCK_BYTES, 1)
    objects = PaperCluster(objects_keyspace())
    objects.join("a")
    assert objects.ask(DescribeKeyspace(objects.keyspace)) == KeyspaceFacts(0, 0, 0, 0)
    objects.commit("a", blocks_of(CHAIN[:4]))
    objects.ask(Remove(objects.keyspace, CHAIN[0]))
    assert objects.ask(DescribeKeyspace(objects.keyspace)) == KeyspaceFacts(3, 3, 3 * BLOCK_BYTES, 0)


def test_nodes_confirm() -> None:
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN))
    outcome = cluster.outcome(Remove(cluster.keyspace, CHAIN[0]))
    assert [segment for segment, _ in outcome.awaits] == [s.info.segment for s in cluster.segments.values()]
    assert cluster.confirmed == []
    cluster.report("a")
    cluster.report("b")
    assert tuple(cluster.confirmed) == outcome.awaits


def test_a_hash_without_a_row_is_still_looked_for() -> None:
    cluster = made()
    outcome = cluster.outcome(Remove(cluster.keyspace, CHAIN[3]))
    assert outcome.reply == Removed(0, 0, [])
    push = outcome.pushes[0][1]
    assert isinstance(push, Drop)
    assert (push.keyspace, push.hashes, push.drops) == (cluster.keyspace, CHAIN[3], [])


@pytest.mark.parametrize("away_s", [5, 40])
def test_a_node_that_was_away_learns_of_removals(away_s: int) -> None:
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN[:5]))
    cluster.disconnect("a")
    cluster.advance(away_s)
    outcome = cluster.outcome(Remove(cluster.keyspace, CHAIN[0]))
    assert len(outcome.awaits) == 2
    cluster.report("b")
    assert len(cluster.confirmed) == 1
    cluster.join("a", inventory=False)
    cluster.report("a")
    assert (0, CHAIN[0]) not in cluster.segments["a"].held, "its first message brought the removal"
    cluster.report("a", *cluster.inventory("a"), InventoryEnd())
    assert len(cluster.confirmed) == 2
    reply = cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[:5]))]))
    assert reply == Matched([0])


def test_what_was_put_after_a_removal_stays_though_its_confirmation_was_lost() -> None:
    """The node is told again only what it has not done, and nothing is withheld of its inventory."""
    cluster = made("a")
    cluster.commit("a", blocks_of(CHAIN[:5]))
    outcome = cluster.outcome(Remove(cluster.keyspace, CHAIN[0]))
    assert not cluster.segments["a"].held
    cluster.disconnect("a")  # its DropDone is lost
    for block in blocks_of(CHAIN[:5]):
        cluster.segments["a"].fill(0, block)
    cluster.join("a")
    cluster.report("a")
    assert tuple(cluster.confirmed) == outcome.awaits
    assert matched(cluster, 5) == 5
    assert len(cluster.segments["a"].held) == 5
    cluster.core.validate()


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_put_while_a_removal_is_told_again_stays(whole: bool) -> None:
    """Between a node's return and its word that it has done what was asked while it was away."""
    cluster = made("a")
    cluster.commit("a", blocks_of(CHAIN[:5]))
    cluster.disconnect("a")
    request = Clear(cluster.keyspace) if whole else Remove(cluster.keyspace, CHAIN[0])
    outcome = cluster.outcome(request)
    segment = cluster.join("a", inventory=False)
    fresh = segment.fill(0, blocks_of(CHAIN)[0])  # a slot that its inventory will name too
    older = segment.held[0, CHAIN[0]][0]
    segment.connected = False  # the order to drop is on its way
    cluster.report("a", *cluster.inventory("a"))
    segment.connected = True
    assert matched(cluster, 1) == 1, "what was put since is there, before the removal is confirmed"
    drops = [push[1] for push in outcome.pushes]
    again = cluster.core.look.nodes()[0].outstanding[drops[0].drop_id]
    assert isinstance(again, Drop) and older[1] < again.before <= fresh[1]
    cluster.deliver([(segment.info.segment, again)])
    assert segment.held[0, CHAIN[0]] == [fresh]
    cluster.report("a", InventoryEnd())
    assert tuple(cluster.confirmed) == outcome.awaits and matched(cluster, 1) == 1
    cluster.core.validate()


def test_a_removal_that_is_asked_while_an_inventory_is_read_hits_what_comes_with_it() -> None:
    """What it names may have been put before it, and not told yet."""
    cluster = made("a")
    segment = cluster.join("a", inventory=False)
    cluster.report("a")
    segment.fill(0, blocks_of(CHAIN)[0])
    segment.connected = False
    outcome = cluster.outcome(Remove(cluster.keyspace, CHAIN[0]))
    cluster.report("a", *cluster.inventory("a"))
    segment.connected = True
    assert matched(cluster, 1) == 0
    cluster.deliver(outcome.pushes)
    assert not segment.held
    cluster.report("a", InventoryEnd())
    assert matched(cluster, 1) == 0 and tuple(cluster.confirmed) == outcome.awaits


def test_removals_for_a_node_that_is_away_are_bounded() -> None:
    cluster = made("a")
    cluster.disconnect("a")
    for number in range(100):
        cluster.ask(Remove(cluster.keyspace, number.to_bytes(16, "big")))
    cluster.core.validate()


def test_what_a_removal_drops_fits_one_message() -> None:
    """A Drop too large to send would leave the blocks on their nodes, where nothing ever evicts them."""
    copies = removals.COPIES_MAX
    places = DropList(bytes(16), bytes(2 * copies), bytes(32 * copies), bytes(4 * copies), bytes(8 * copies))
    drop = Drop(1 << 60, 1 << 60, [places], bytes(16), bytes(32 * removals.REMOVE_MAX))
    assert len(encode(drop)) < FRAME_BYTES_MAX


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> PaperCluster:
    """CHAIN in equal parts on a and b, with forks: too much for one request, and for ten ticks."""
    monkeypatch.setattr(removals, "COPIES_MAX", 10)
    monkeypatch.setattr(removals, "SLICE_ROWS", 3)
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN[:15]))
    cluster.commit("b", blocks_of(CHAIN, 15))
    for fork in range(10):
        cluster.commit("b", [Block(bytes([fork]) * 16, 1, CHAIN[0])])
    return cluster


def held(cluster: PaperCluster) -> int:
    return sum(len(segment.held) for segment in cluster.segments.values())


def matched(cluster: PaperCluster, count: int = 30) -> int:
    reply = cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[:count]))], 0))
    assert isinstance(reply, Matched)
    return reply.ready[0]


def test_a_large_removal_is_a_miss_at_once_and_goes_in_slices(large: PaperCluster) -> None:
    assert matched(large) == 30
    assert removed(large, [CHAIN[0]]) == Removed(40, 0, ["a", "b"])
    assert matched(large) == matched(large, 1) == 0
    for left in range(36, -1, -3):
        large.advance(0.2)
        large.core.validate()
        assert held(large) == left
        assert matched(large) == 0
        for name in large.segments:
            large.report(name)
        holders = [name for name, segment in large.segments.items() if segment.held]
        assert removed(large, [CHAIN[0]]).pending == holders
    assert large.core.status(0)["rows"] == 0
    large.commit("a", blocks_of(CHAIN))
    assert matched(large) == 30, "what comes later is no part of it"


def test_what_goes_in_slices_is_confirmed_by_nodes_that_were_away(large: PaperCluster) -> None:
    large.disconnect("a")
    assert removed(large, [CHAIN[0]]) == Removed(40, 0, ["a", "b"])
    large.advance(20)
    large.core.validate()
    assert (len(large.segments["a"].held), len(large.segments["b"].held)) == (15, 0)
    large.join("a", inventory=False)
    large.report("a")
    assert not large.segments["a"].held, "its first message brought all slices"
    large.report("a", *large.inventory("a"), InventoryEnd())
    assert large.core.status(0)["rows"] == 0
    assert not any(node.outstanding for node in large.core._nodes.all() if node.info.node == "a")


def test_a_commit_on_what_is_being_removed_goes_too(large: PaperCluster) -> None:
    removed(large, [CHAIN[0]])
    large.commit("b", blocks_of(CHAIN[:2]))
    large.commit("b", [Block(b"new!" * 4, 3, CHAIN[2])])
    large.core.validate()
    assert matched(large) == matched(large, 1) == 0
    large.advance(20)
    assert held(large) == large.core.status(0)["rows"] == 0
    large.core.validate()


def test_a_large_removal_minds_leases_and_what_fits_goes_at_once(large: PaperCluster) -> None:
    large.ask(Match(large.keyspace, [(0, join_hashes(CHAIN[:25]))]))
    assert removed(large, [CHAIN[0]]) == Removed(0, 1, [])
    assert matched(large) == 30
    assert removed(large, [CHAIN[26], CHAIN[0]], force=True) == Removed(40, 0, ["a", "b"])
    assert large.core.status(0)["rows"] == 36
    large.ask(Clear(large.keyspace))
    large.advance(2)
    assert large.core.status(0)["rows"] == 0
    large.core.validate()


def test_clear() -> None:
    cluster = made("a", "b")
    cluster.commit("a", blocks_of(CHAIN))
    cluster.ask(Pin(cluster.keyspace, CHAIN[20]))
    cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[:25]))]))
    assert cluster.ask(Clear(cluster.keyspace, force=False)) == Removed(0, 2, [])
    outcome = cluster.outcome(Clear(cluster.keyspace))
    assert outcome.reply == Removed(30, 0, [])
    assert len(outcome.awaits) == 2
    assert not cluster.segments["a"].held
    assert cluster.core.status(0)["rows"] == 0
    cluster.report("a")
    cluster.commit("a", blocks_of(CHAIN))
    assert cluster.core.status(0)["rows"] == 30


def test_clear_in_the_middle_of_an_inventory() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    cluster.join("a", inventory=False)
    cluster.report("a")
    cluster.ask(Clear(cluster.keyspace))
    cluster.commit("a", blocks_of(CHAIN[:4]))
    cluster.report("a", InventoryEnd())
    assert cluster.core.status(0)["rows"] == 4
    cluster.core.validate()


def test_one_rank_of_a_flat_row() -> None:
    cluster = PaperCluster(flat_spec(2))
    cluster.join("a")
    cluster.commit("a", [Block(CHAIN[0])])
    assert cluster.ask(Remove(cluster.keyspace, CHAIN[0], rank=1)) == Removed(1, 0, [])
    assert list(cluster.segments["a"].held) == [(0, CHAIN[0])]
    cluster.core.validate()


def test_unknown_names() -> None:
    cluster = made()
    with pytest.raises(KeyspaceUnknown):
        cluster.ask(Remove(bytes(16), CHAIN[0]))
    with pytest.raises(NotFound):
        cluster.ask(Describe(cluster.keyspace, CHAIN[0]))
    with pytest.raises(NotFound):
        cluster.ask(Describe(cluster.keyspace, b""))


def test_keyspaces_are_bounded_and_empty_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.master.shard_set.KEYSPACES_MAX", 2)
    cluster = made()
    spec = chained_spec(name="second")
    assert cluster.ask(RegisterKeyspace(spec)) == KeyspaceRegistered(spec.digest(), 1)
    third = chained_spec(name="third")
    cluster.ask(RegisterKeyspace(third))
    with pytest.raises(KeyspaceUnknown):
        cluster.commit("a", blocks_of(CHAIN))
    for keyspace in (spec, third):
        op = cluster.entries([(0, Block(CHAIN[0]), (1, 1))])
        cluster.report("a", Entries(keyspace.digest(), *(getattr(op, f) for f in op.__struct_fields__[1:])))
    with pytest.raises(Overloaded):
        cluster.ask(RegisterKeyspace(chained_spec(name="fourth")))
