"""Quotas in a master's core: who is over gives way first where a node needs room."""

from __future__ import annotations

from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, chained_spec, dropped

from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import PutAnswer, PutItem, PutStart, PutStarted, RegisterKeyspace, SetTenant
from moonpool.schemas.packed import join_hashes

OLD, NEW = chain(20), chain(20, "new")


def two_tenants() -> tuple[PaperCluster, PaperCluster]:
    """The same cluster as each of two tenants uses it."""
    one = PaperCluster(chained_spec(1))
    one.join("a")
    spec = KeyspaceSpec(
        kind=Kind.CHAINED, name="other", shard_bytes=one.spec.shard_bytes, hash_bytes=16, tenant="blue"
    )
    other = PaperCluster(spec)
    other.core, other.segments = one.core, one.segments
    other.ask(RegisterKeyspace(spec))
    return one, other


def test_who_is_over_gives_way_first_however_young_the_blocks_are() -> None:
    mine, theirs = two_tenants()
    mine.commit("a", blocks_of(OLD))
    mine.advance(10)
    theirs.now_s = mine.now_s
    theirs.commit("a", blocks_of(NEW))
    mine.ask(SetTenant("blue", 5 * BLOCK_BYTES))
    victims = mine.need("a", 15)
    assert {part.keyspace for part in victims.drops} == {theirs.keyspace}
    assert [block for _, block, _ in dropped(victims.drops)] == NEW[:4:-1]
    victims = mine.need("a", 3)
    assert [block for _, block, _ in dropped(victims.drops)] == OLD[:16:-1], "within its quota: by age again"
    mine.core.validate()


def test_a_put_over_the_quota_evicts_the_tenants_own_leaves() -> None:
    mine, theirs = two_tenants()
    mine.commit("a", blocks_of(OLD))
    theirs.commit("a", blocks_of(NEW))
    mine.ask(SetTenant("blue", 22 * BLOCK_BYTES))
    more = chain(30, "more")
    item = PutItem(theirs.keyspace, 0, 0, b"", join_hashes(more), BLOCK_BYTES)
    reply = theirs.ask(PutStart([item]))
    assert isinstance(reply, PutStarted)
    answers = list(reply.answers[0])
    assert answers == [PutAnswer.GO] * 22 + [PutAnswer.QUOTA] * 8, (
        "its head fits, which is what is worth keeping"
    )
    assert sum(len(part.hashes) for drop in mine.segments["a"].drops for part in drop.drops) == 20 * 16
    mine.core.validate()
    again = theirs.ask(PutStart([item]))
    assert isinstance(again, PutStarted)
    assert set(again.answers[0]) == {PutAnswer.BUSY, PutAnswer.QUOTA}, "promises count"
