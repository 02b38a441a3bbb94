"""A tenant at its quota gives up what it used least of late, wherever in the pool that lies."""

from __future__ import annotations

from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, chain, flat_spec

from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import Pin, PutAnswer, PutItem, PutStart, PutStarted

HASHES = chain(400)
NODES = ("a", "b", "c")
QUOTA = 120


def made() -> PaperCluster:
    cluster = PaperCluster(flat_spec(), MasterSettings(quotas=f"default={QUOTA * BLOCK_BYTES}"))
    for name in NODES:
        cluster.join(name)
        cluster.heartbeat(name)
    return cluster


def put(cluster: PaperCluster, number: int) -> PutAnswer:
    """One object, where the master says."""
    cluster.now_s += 0.1
    started = cluster.ask(
        PutStart([PutItem(cluster.keyspace, 0, 0, b"", HASHES[number], BLOCK_BYTES)]), "elsewhere"
    )
    assert isinstance(started, PutStarted)
    names = {segment.info.segment: name for name, segment in cluster.segments.items()}
    if started.segments[0]:
        cluster.commit(names[started.segments[0]], [Block(HASHES[number])])
    for name in NODES:  # what was dropped is told
        cluster.report(name)
    return PutAnswer(started.answers[0][0])


def there(cluster: PaperCluster) -> list[int]:
    held = {key[1] for segment in cluster.segments.values() for key in segment.held}
    return [number for number, block_hash in enumerate(HASHES) if block_hash in held]


def test_the_oldest_go_first_on_whichever_node() -> None:
    cluster = made()
    for number in range(300):
        assert put(cluster, number) is PutAnswer.GO
    left = there(cluster)
    assert left == list(range(left[0], 300)), "exactly the newest"
    assert QUOTA * 0.8 < len(left) <= QUOTA
    assert all(len(segment.held) > 10 for segment in cluster.segments.values())
    cluster.core.validate()


def test_pinned_ones_stay_on_every_node() -> None:
    cluster = made()
    for number in range(30):
        put(cluster, number)
    cluster.ask(Pin(cluster.keyspace, b"".join(HASHES[:30]), 0))
    for number in range(30, 300):
        assert put(cluster, number) is PutAnswer.GO
    left = there(cluster)
    assert left[:30] == list(range(30)) and left[30:] == list(range(left[30], 300))


def test_nothing_to_evict_is_a_refusal() -> None:
    cluster = made()
    for number in range(QUOTA):
        put(cluster, number)
    cluster.ask(Pin(cluster.keyspace, b"".join(HASHES[:QUOTA]), 0))
    assert put(cluster, QUOTA) is PutAnswer.QUOTA
    assert len(there(cluster)) == QUOTA
