"""Whose blocks may be shared: keyspaces from what the scheduler and every worker know (invariant I10)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moonpool.connector.groups import GroupPlan
from moonpool.connector.records import RankFacts
from moonpool.schemas.errors import InternalError
from moonpool.schemas.keyspace import KeyspaceSpec, Kind

BASE_MODEL = ""
"""The adapter digest of a request without an adapter."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that the bytes of a block depend on, for one state of the weights.

    `config`: facts of the resolved configuration. `ranks`: one RankFacts a worker, by its rank in the engine.
    """

    name: str
    tenant: str
    hash_bytes: int
    plan: GroupPlan
    config: Mapping[str, str]
    ranks: tuple[RankFacts, ...]

    def specs(self, adapter: str = BASE_MODEL) -> tuple[KeyspaceSpec, ...]:
        """One keyspace a group. `adapter`: digest of a LoRA adapter's content."""
        common = dict(self.config)
        common["weights"] = _digest(facts.weights for facts in self.ranks)
        common["adapter"] = adapter
        if len({facts.facts for facts in self.ranks}) == 1:
            common |= dict(self.ranks[0].facts)
        else:  # such as KV scales of the heads that a rank has
            common["rank_facts"] = _digest(repr(facts.facts) for facts in self.ranks)
        return tuple(self._spec(number, common) for number in range(len(self.plan.groups)))

    def _spec(self, number: int, common: Mapping[str, str]) -> KeyspaceSpec:
        group = self.plan.groups[number]
        shards: dict[int, RankFacts] = {}
        for facts in self.ranks:
            known = shards.setdefault(facts.shard, facts)
            if (known.shard_bytes[number], known.layouts[number]) != (
                facts.shard_bytes[number],
                facts.layouts[number],
            ):
                raise InternalError(detail=f"ranks that should hold equal KV differ in shard {facts.shard}")
        if sorted(shards) != list(range(len(shards))):
            raise InternalError(detail=f"shards {sorted(shards)} have a gap")
        ordered = [shards[shard] for shard in range(len(shards))]
        pairs = dict(common)
        pairs["group"] = f"{number} of {len(self.plan.groups)}: {group.kind} {group.span_tokens}"
        pairs["hash_tokens"] = str(self.plan.hash_tokens)
        pairs["layout"] = _digest(facts.layouts[number] for facts in ordered)
        return KeyspaceSpec(
            kind=Kind.CHAINED if group.chained else Kind.FLAT,
            name=self.name,
            shard_bytes=tuple(facts.shard_bytes[number] for facts in ordered),
            hash_bytes=self.hash_bytes,
            block_tokens=group.block_tokens,
            tenant=self.tenant,
            identity=tuple(sorted(pairs.items())),
        )


def _digest(texts: Iterable[str]) -> str:
    """One digest over texts; their borders count."""
    hasher = hashlib.sha256()
    for text in texts:
        data = text.encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()[:32]
