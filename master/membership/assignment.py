"""Who should own which shard: balanced, and moving as few shards as balance allows. Pure.

Every master computes this from the same records, so no one has to be asked. Ties are broken by rendezvous hashing: a
(shard, master) pair has a score of its own, and adding a master changes nobody else's scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import xxhash


def assign(shards: int, masters: Collection[str], owners: Mapping[int, str]) -> dict[int, str]:
    """The master of every shard; none where there are no masters. `owners`: as it is now; owners that aren't among
    `masters` have left, or are leaving.

    Each gets shards/masters of them, rounded down or up; up for those that have more already.
    """
    if not masters:
        return {}
    kept: dict[str, list[int]] = {master: [] for master in masters}
    homeless: list[int] = []
    for shard in range(shards):
        owner = owners.get(shard)
        if owner in kept:
            kept[owner].append(shard)
        else:
            homeless.append(shard)
    quotas = _quotas(shards, kept)
    for master, mine in kept.items():
        mine.sort(key=lambda shard: score(shard, master), reverse=True)
        homeless += mine[quotas[master] :]
        del mine[quotas[master] :]
    assigned = {shard: master for master, mine in kept.items() for shard in mine}
    room = {master: quotas[master] - len(mine) for master, mine in kept.items()}
    for shard in sorted(homeless):
        best = max((m for m in room if room[m] > 0), key=lambda master: (score(shard, master), master))
        assigned[shard] = best
        room[best] -= 1
    return assigned


def score(shard: int, master: str) -> int:
    """Rendezvous hashing: the higher, the better they fit."""
    return xxhash.xxh3_64_intdigest(f"{shard}/{master}".encode())


def _quotas(shards: int, kept: Mapping[str, Collection[int]]) -> dict[str, int]:
    least, more = divmod(shards, len(kept))
    ranked = sorted(kept, key=lambda master: (-len(kept[master]), score(-1, master), master))
    return {master: least + (index < more) for index, master in enumerate(ranked)}
