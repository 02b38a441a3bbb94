"""The shards that a master owns, seen as one index: who is asked what, and whose victims go first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from moonpool.master.demand import Demand
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.evictions import Evictions
from moonpool.master.kv_feed import KvFeed
from moonpool.master.membership.shard_state import Event, ShardLife, ShardState
from moonpool.master.need import Evicted, Room, next_age_ms
from moonpool.master.piecework import do_piece
from moonpool.master.policy_adaptive import AdaptiveCredit
from moonpool.master.shard import Shard, ShardIndex
from moonpool.master.shard_facts import SUMS
from moonpool.master.step import NOWHERE, Step, check_count
from moonpool.master.table import Table
from moonpool.master.victims import Budget
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown, NotFound, Overloaded, WrongShard
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Clear, Describe, Message, Pin, PutStart, Remove, Unpin
from moonpool.schemas.routing import Part, Places, merged, parts_of, slices_of
from moonpool.schemas.runs import SHARDS_MAX

KEYSPACES_MAX = 4096
NEED_ROWS_MAX = 4096
STUDIED_AT_NEED = 4  # requests that the policy may yet learn from before it chooses
CHANGES = (PutStart, Remove, Clear, Pin, Unpin)
"""Requests that a shard takes only when its hard state is loaded, and not while it leaves."""

StepOf = Callable[[int], Step]
"""A step of that shard."""

Claim = tuple[int, int]
"""(shard, epoch): who owns it, owns it in that epoch."""


class ShardSet:
    """Some of a cluster's `total` shards, each in the epoch in which it was taken over. One policy ranks the victims
    of all of them, so that they compare."""

    def __init__(self, total: int, policy: EvictionPolicy | None = None, feed: KvFeed | None = None) -> None:
        if not 1 <= total <= SHARDS_MAX:
            raise InvalidParams(field="shards", value=total, allowed=f"1 to {SHARDS_MAX}")
        self.total = total
        self._every = np.arange(total)
        self._policy = policy or AdaptiveCredit()
        self._feed = feed
        self._shards: dict[int, ShardIndex] = {}
        self._lives: dict[int, ShardLife] = {}
        self.late = False  # see lease_is_late
        self.map_epoch = 0
        """Of the cluster map, for those who ask here by mistake."""
        self._specs: dict[bytes, KeyspaceSpec] = {}
        self.evictions = Evictions()
        self.replicated: dict[bytes, int] = {}
        """Copies that each keyspace wants, of those that want more than one; also of keyspaces to come."""

    # ------------------------------------------------------------ ownership

    def own(self, shard: int, epoch: int) -> None:
        """Takes a shard over, empty and loading. Epochs of a shard only grow."""
        if not 0 <= shard < self.total:
            raise InvalidParams(field="shard", value=shard, allowed=f"0 to {self.total - 1}")
        life = ShardLife()
        life.happens(Event.TAKEN, epoch)
        if self.late:
            life.happens(Event.LEASE_LATE)
        self._lives[shard] = life
        index = self._shards[shard] = Shard(self._policy, self._feed)
        for spec in self._specs.values():
            index.register(spec)
        for keyspace in self.replicated.keys() & self._specs.keys():
            index.table(keyspace).replicas = self.replicated[keyspace]

    def loaded(self, shard: int) -> None:
        """The hard state of an owned shard is known."""
        self._lives[shard].happens(Event.LOADED)

    def leave(self, shard: int) -> None:
        """An owned shard is to be somebody else's. Idempotent."""
        if not self._lives[shard].leaving:
            self._lives[shard].happens(Event.LEAVING)

    def renumber(self, epoch: int) -> None:
        """All shards are held in a newer epoch: of a master that is alone."""
        for life in self._lives.values():
            life.epoch = max(epoch, life.epoch)

    def lease_is_late(self, late: bool) -> None:
        """Until it is renewed nothing is answered, or said to nodes."""
        if late != self.late:
            self.late = late
            for life in self._lives.values():
                life.happens(Event.LEASE_LATE if late else Event.LEASE_RENEWED)

    def disown(self, shard: int) -> None:
        """Forgets a shard: it is somebody else's now."""
        index = self._shards.pop(shard, None)
        for table in index.tables.values() if index is not None else ():
            if table.feed is not None:
                table.feed.cleared(table)
        self._lives.pop(shard, None)

    def life(self, shard: int) -> ShardLife | None:
        """That of an owned shard: another one each time that it is taken."""
        return self._lives.get(shard)

    def for_report(self, shard: int, epoch: int) -> ShardIndex:
        """For a report stream that is meant for the shard's owner in this epoch (0: not said). Raises WrongShard."""
        life = self._lives.get(shard)
        if life is None or not life.changes or (epoch and not life.taken_in <= epoch <= life.epoch):
            raise WrongShard(shard=shard, epoch=self.map_epoch)
        return self._shards[shard]

    def get(self, shard: int) -> ShardIndex:
        """For readers. Raises WrongShard."""
        life = self._lives.get(shard)
        if life is None or not life.answers:
            raise WrongShard(shard=shard, epoch=self.map_epoch)
        return self._shards[shard]

    def _for(self, message: Message, shard: int) -> ShardIndex:
        index = self.get(shard)
        if isinstance(message, CHANGES) and not self._lives[shard].changes:
            raise WrongShard(shard=shard, epoch=self.map_epoch)
        return index

    def epoch(self, shard: int) -> int:
        """Of an owned shard."""
        return self._lives[shard].epoch

    def states(self) -> Counter[ShardState]:
        """How many owned shards are in which state."""
        return Counter(life.state for life in self._lives.values())

    def __contains__(self, shard: object) -> bool:
        return shard in self._shards

    def __iter__(self) -> Iterator[int]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def claims(self) -> list[Claim]:
        """What nodes are told: all that is owned and whose hard state is known. A report that came earlier could bring
        rows back whose removal is recorded."""
        return [(shard, life.epoch) for shard, life in self._lives.items() if life.changes]

    # ------------------------------------------------------------ keyspaces

    def register(self, spec: KeyspaceSpec) -> None:
        """Makes a keyspace known to all shards, also those to come. Where there are too many keyspaces, an empty one
        makes room. Raises InvalidParams, Overloaded."""
        keyspace = spec.digest()
        if keyspace in self._specs:
            return
        spec.check()
        if len(self._specs) >= KEYSPACES_MAX:
            self._forget(self._empty_keyspace())
        self._specs[keyspace] = spec
        for index in self._shards.values():
            index.register(spec)
            index.table(keyspace).replicas = self.replicated.get(keyspace, 1)

    def want_replicas(self, keyspace: bytes, replicas: int) -> bool:
        """How many copies its blocks are to have. Returns whether that is new."""
        if self.replicated.get(keyspace, 1) == replicas:
            return False
        if replicas > 1:
            self.replicated[keyspace] = replicas
        else:
            del self.replicated[keyspace]
        for index in self._shards.values() if keyspace in self._specs else ():
            index.table(keyspace).replicas = replicas
        return True

    def _empty_keyspace(self) -> bytes:
        for keyspace in self._specs:
            if not any(index.rows_of(keyspace) for index in self._shards.values()):
                return keyspace
        raise Overloaded(what="the list of keyspaces", limit=KEYSPACES_MAX)

    def _forget(self, keyspace: bytes) -> None:
        del self._specs[keyspace]
        for index in self._shards.values():
            index.unregister(keyspace)

    def specs(self) -> list[KeyspaceSpec]:
        """Of every keyspace."""
        return list(self._specs.values())

    @property
    def specs_by_digest(self) -> Mapping[bytes, KeyspaceSpec]:
        """The same by name."""
        return self._specs

    def facts_of(self, tenant: str) -> dict[str, int | float | str]:
        """Sizes of one tenant's keyspaces."""
        tables = [index.tables[keyspace] for keyspace in self._of(tenant) for index in self._shards.values()]
        return {
            "keyspaces": len(self._of(tenant)),
            "used_bytes": sum(table.used_bytes for table in tables),
            "rows": sum(map(len, tables)),
            "copies": sum(sum(table.copies.values()) for table in tables),
            "pins": sum(len(table.pins) for table in tables),
        }

    def _of(self, tenant: str) -> list[bytes]:
        return [keyspace for keyspace, spec in self._specs.items() if spec.tenant == tenant]

    def tables_of(self, tenant: str) -> dict[int, list[Table]]:
        """One tenant's tables in the shards that may be changed."""
        own = self._of(tenant)
        return {
            shard: [self._shards[shard].tables[keyspace] for keyspace in own]
            for shard, life in self._lives.items()
            if life.changes
        }

    def stored_by(self, tenant: str) -> int:
        """Bytes of a tenant's copies, and of those that are promised."""
        return sum(
            index.tables[keyspace].used_bytes + index.promised_to.get(keyspace, 0)
            for keyspace in self._of(tenant)
            for index in self._shards.values()
        )

    def _hash_bytes(self, keyspace: bytes) -> int:
        spec = self._specs.get(keyspace)
        if spec is None:
            raise KeyspaceUnknown(keyspace=keyspace.hex())
        return spec.hash_bytes

    # ------------------------------------------------------------ clients

    def slices(self, message: Message, blocks: int) -> list[Part]:
        """A long request in parts of about so many blocks; [] where it isn't long. Raises KeyspaceUnknown, InvalidParams."""
        parts = slices_of(message, blocks, self._hash_bytes)
        check_count(blocks * (len(parts) - 1), "hashes")
        return parts if len(parts) > 1 else []

    def answer(self, message: Message, step: Step) -> Message:
        """`ask` of a question that leaves nothing for the nodes."""
        if self.total == 1:
            return self.get(0).ask(message, step)
        return self.ask(message, lambda _: step)[0]

    def ask(self, message: Message, step_of: StepOf) -> tuple[Message, list[Step]]:
        """A client's request: the answer, and what it leaves for the nodes. Raises MoonpoolError for refusals. One
        that concerns several shards may have changed some of them then: leases and promises end by themselves, and
        removals may be asked for again."""
        if self.total == 1:
            step = step_of(0)
            return self._for(message, 0).ask(message, step), [step]
        places = Places(self._every, list(self._shards), False, self._hash_bytes)
        parts = parts_of(message, places)
        if not parts:
            raise WrongShard(shard="of any number", epoch=self.map_epoch)
        indices = [self._for(message, part.place) for part in parts]
        if isinstance(message, Describe):
            return self._describe(message, [part.place for part in parts], step_of)
        steps = [step_of(part.place) for part in parts]
        replies = [
            index.ask(part.message, step) for index, part, step in zip(indices, parts, steps, strict=True)
        ]
        return merged(message, parts, replies), steps

    def _describe(self, message: Describe, shards: list[int], step_of: StepOf) -> tuple[Message, list[Step]]:
        for shard in shards:
            try:
                return self.get(shard).ask(message, step_of(shard)), []
            except NotFound:
                continue
        raise NotFound(key=message.block_hash.hex())

    # ------------------------------------------------------------ nodes

    def need(
        self, segment: int, want_bytes: int, now_s: float, step_of: StepOf, first: Collection[str] = ()
    ) -> Evicted:
        """Removes victims until so many bytes of the segment are free: of all shards, in the order of their worth.
        Tenants named `first` give up theirs before all others."""
        if want_bytes < 0:
            raise InvalidParams(field="want_bytes", value=want_bytes, allowed="0 or more")
        steps = {shard: step_of(shard) for shard, life in self._lives.items() if life.changes}
        offers = {
            table: step.drops for shard, step in steps.items() for table in self._shards[shard].offers()
        }
        tables = list(offers)
        self._policy.full(sum(map(len, tables)))
        for _ in range(STUDIED_AT_NEED):
            self._policy.study()
        budget = Budget(NEED_ROWS_MAX)
        freed_bytes = 0
        staying = next((step.staying for step in steps.values()), NOWHERE)
        theirs = {table: drops for table, drops in offers.items() if table.spec.tenant in first}
        for some in (theirs, offers) if theirs else (offers,):
            room = Room(segment, want_bytes - freed_bytes, now_s, some, budget, self.evictions, staying)
            room.make()
            freed_bytes += room.freed_bytes
        drops = [drop for step in steps.values() for drop in step.drops.take(segment)]
        return Evicted(drops, freed_bytes, next_age_ms(tables, segment, now_s), list(steps.values()))

    def lose(self, segment: int) -> None:
        """The segment's copies go, in slices."""
        for index in self._shards.values():
            index.lose(segment)

    def holds(self, segment: int) -> bool:
        """Whether a lost segment's copies are not all gone yet."""
        return any(index.holds(segment) for index in self._shards.values())

    def forget(self, segment: int) -> None:
        """The index number will be given to another segment."""
        for index in self._shards.values():
            index.forget(segment)

    def promised(self) -> Mapping[int, int]:
        """Bytes that writers were promised, by segment."""
        if len(self._shards) == 1:
            return next(iter(self._shards.values())).promised
        total: Counter[int] = Counter()
        for index in self._shards.values():
            total.update(index.promised)
        return total

    def tick(self, step_of: StepOf) -> list[Step]:
        """Time has passed. Returns what that leaves for the nodes."""
        steps = self._open_steps(step_of)
        for step in steps:
            step.share = 1 / len(steps)
            self._shards[step.shard].tick(step)
        return steps

    def work(self, now_s: float) -> float:
        """A piece of what may wait, see piecework.py. Seconds until the next one is due; inf: there is none."""
        return do_piece(self._policy, list(self._shards.values()), now_s)

    def remove_some(self, step_of: StepOf) -> list[Step]:
        """A slice of the removals that were too much for one request."""
        steps = self._open_steps(step_of)
        for step in steps:
            self._shards[step.shard].remove_some(step)
        return steps

    def _open_steps(self, step_of: StepOf) -> list[Step]:
        return [step_of(shard) for shard, life in self._lives.items() if life.answers]

    # ------------------------------------------------------------ facts

    def changing(self) -> Iterator[tuple[int, Table]]:
        """(shard, table) of those shards whose rows may be changed."""
        for shard, life in self._lives.items():
            for table in self._shards[shard].tables.values() if life.changes else ():
                yield shard, table

    def is_current(self, shard: int, table: Table) -> bool:
        """Whether that is the shard's table still, and may be changed."""
        life = self._lives.get(shard)
        return life is not None and life.changes and self._shards[shard].tables.get(table.keyspace) is table

    def tables(self) -> Iterator[tuple[int, Table]]:
        """(shard, table) of every keyspace. To be read only."""
        for shard, index in self._shards.items():
            for table in index.tables.values():
                yield shard, table

    def demands(self) -> list[tuple[int, Demand]]:
        """(shard, what it is asked for) of each shard that is owned."""
        return [(shard, index.demand) for shard, index in self._shards.items()]

    def facts(self) -> dict[str, int | float | str]:
        """Sizes and counters of all shards together."""
        sums: Counter[str] = Counter(dict.fromkeys(SUMS, 0))
        for index in self._shards.values():
            sums.update(index.facts())
        return {
            "keyspaces": len(self._specs),
            **sums,
            "evicted_rows": self.evictions.rows,
            **self._policy.facts(),
        }

    def validate(self) -> None:
        """Asserts every invariant. A scan: for tests."""
        assert self._shards.keys() == self._lives.keys()
        for life in self._lives.values():
            life.validate()
        assert all(0 <= shard < self.total for shard in self._shards)
        self._policy.validate()
        for index in self._shards.values():
            index.validate()
            assert {spec.digest() for spec in index.specs()} == self._specs.keys(), "keyspaces differ"
