"""Objects that stand alone are evicted by the thousand: the same ones, in the same order, as one by one."""

from __future__ import annotations

import random

import pytest
from support.paper_cluster import PaperCluster, blocks_of, chain, flat_spec

from moonpool.master import victims
from moonpool.schemas.messages import Pin, Presence, Remove, Renew, Unpin
from moonpool.schemas.packed import join_hashes

ROWS = 300


def evicted(seed: int) -> list[bytes]:
    """Hashes in the order in which needs took them, after a history that `seed` decides."""
    rng = random.Random(seed)
    cluster = PaperCluster(flat_spec())
    cluster.join("a")
    keyspace, gone = cluster.spec.digest(), []
    hashes = chain(2 * ROWS)
    for first in range(0, len(hashes), 50):
        cluster.commit("a", blocks_of(hashes[first : first + 50]))
        some = join_hashes(rng.sample(hashes[: first + 50], 12))
        cluster.ask(
            rng.choice(
                [
                    Presence(keyspace, some, ttl_ms=rng.choice([500, 20_000])),
                    Renew(keyspace, some, lease_ms=rng.choice([500, 20_000])),
                    Pin(keyspace, some),
                    Unpin(keyspace, some),
                    Remove(keyspace, some, force=True, wait_ms=0),
                ]
            )
        )
        cluster.advance(rng.choice([0.1, 0.4, 3.0]))
        if rng.random() < 0.4:
            for drops in cluster.need("a", rng.randrange(1, 60)).drops:
                gone += [drops.hashes[at : at + 16] for at in range(0, len(drops.hashes), 16)]
            cluster.core.validate()
    for drops in cluster.need("a", ROWS).drops:
        gone += [drops.hashes[at : at + 16] for at in range(0, len(drops.hashes), 16)]
    cluster.core.validate()
    return gone


@pytest.mark.parametrize("seed", range(12))
def test_the_same_victims_in_the_same_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = evicted(seed)
    monkeypatch.setattr(victims, "ALIKE_MIN", 1 << 30)
    assert together == evicted(seed)
    assert len(together) > ROWS // 2
