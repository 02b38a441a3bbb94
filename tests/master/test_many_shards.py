"""A master with many shards answers as one with a single shard does, whatever it is asked."""

from __future__ import annotations

import random

import msgspec
import pytest
from support.paper_cluster import BLOCK_BYTES, Block, blocks_of, chain, chained_spec, flat_spec

from moonpool.benchmarks.paper_node import node_info
from moonpool.master.core import MasterCore, Origin
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown, NotFound, WrongShard
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Clear,
    Describe,
    DescribeKeyspace,
    Done,
    Drop,
    DropDone,
    Entries,
    InventoryEnd,
    Locate,
    Located,
    Match,
    Message,
    Need,
    Op,
    Pin,
    Presence,
    PutAbandon,
    PutItem,
    PutStart,
    Remove,
    Removed,
    Renew,
    Report,
    RunSlice,
    Unpin,
    Victims,
)
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64, u32s, u64s
from moonpool.schemas.runs import run_start, shard_of, shards_of, split_runs
from moonpool.store_client.prefix import PrefixSearch

SEGMENT = b"segment-"
LENGTH = 700
"""Blocks of a chain: three runs."""


class Master:
    """A core of so many shards, with one node on paper that does what it is told."""

    def __init__(self, shards: int, spec: KeyspaceSpec) -> None:
        self.shards, self.spec, self.keyspace = shards, spec, spec.digest()
        self.core = MasterCore(shards, 7, MasterSettings())
        self.now_s = 0.0
        self.slot = 0
        self.sequences = dict.fromkeys(range(shards), 0)
        self.places: dict[int, int] = {}
        self.shard_of: dict[int, int] = {}
        self.ask(Announce(node_info(SEGMENT), [spec], 0))
        for shard in range(shards):
            self.report(shard, InventoryEnd())

    def ask(self, message: Message) -> Message:
        outcome = self.core.handle(message, self.now_s, Origin("host", "default", SEGMENT))
        for _, push in outcome.pushes:
            assert isinstance(push, Drop)
            for drop in push.drops:
                assert drop.shard == push.shard and push.epoch == 7
                self.free(drop.slots, drop.generations)
            if push.whole_keyspace:
                for slot in [slot for slot, shard in self.shard_of.items() if shard == push.shard]:
                    self.places.pop(slot, None)
            self.report(push.shard, DropDone(push.drop_id))
        if isinstance(outcome.reply, Victims):
            for drop in outcome.reply.drops:
                assert (drop.shard, 7) in outcome.reply.claims
                self.free(drop.slots, drop.generations)
        return outcome.reply

    def free(self, slots: bytes, generations: bytes) -> None:
        for slot, generation in zip(u32s(slots).tolist(), u64s(generations).tolist(), strict=True):
            assert self.places.pop(slot) == generation

    def report(self, shard: int, op: Op) -> None:
        sequence, self.sequences[shard] = self.sequences[shard], self.sequences[shard] + 1
        self.ask(Report(SEGMENT, 1, sequence, [op], shard))

    def commit(self, blocks: list[Block], roots: list[bytes]) -> None:
        """Blocks on the node, each in the shard of its root."""
        by_shard: dict[int, list[Block]] = {}
        for block, root in zip(blocks, roots, strict=True):
            by_shard.setdefault(shard_of(self.keyspace, root, self.shards), []).append(block)
        for shard, mine in by_shard.items():
            slots = list(range(self.slot, self.slot + len(mine)))
            self.slot += len(mine)
            self.places |= {slot: slot + 1 for slot in slots}
            self.shard_of |= dict.fromkeys(slots, shard)
            self.report(shard, entries(self.keyspace, mine, slots))

    def column(self, roots: list[bytes]) -> bytes:
        return pack_u16(shards_of(self.keyspace, join_hashes(roots), 16, self.shards))

    def located(self, message: Locate) -> list[tuple[bytes, bool]]:
        """(segment, whether it is there) of each block: slots differ, as they were given in another order."""
        reply = self.ask(message)
        assert isinstance(reply, Located)
        there = [generation > 0 for generation in u64s(reply.generations).tolist()]
        for slot, generation in zip(
            u32s(reply.slots).tolist(), u64s(reply.generations).tolist(), strict=True
        ):
            assert not generation or self.places[slot] == generation
        which = u32s(pack_u32([*reply.which[::2]])).tolist()
        return [(reply.segments[w] if t else b"", t) for w, t in zip(which, there, strict=True)]


def entries(keyspace: bytes, blocks: list[Block], slots: list[int]) -> Entries:
    return Entries(
        keyspace,
        pack_u16([0] * len(blocks)),
        pack_u32([block.position for block in blocks]),
        join_hashes(block.block_hash for block in blocks),
        join_hashes(block.parent for block in blocks),
        pack_u32(slots),
        pack_u64([slot + 1 for slot in slots]),
        pack_u64([BLOCK_BYTES] * len(blocks)),
    )


def both(spec: KeyspaceSpec) -> tuple[Master, Master]:
    return Master(1, spec), Master(5, spec)


def chained_step(master: Master, dice: random.Random) -> object:
    """One request of a chained keyspace; the same for equal dice."""
    hashes = chain(dice.randrange(1, LENGTH), f"c{dice.randrange(4)}")
    runs = list(split_runs(0, len(hashes)))
    roots = [hashes[at] for at, _ in runs]
    shards, deepest = master.column(roots), [hashes[at + count - 1] for at, count in runs]
    match dice.randrange(11):
        case 0 | 1 | 2:
            first = dice.randrange(len(hashes))
            blocks = blocks_of(hashes, first)
            master.commit(blocks, [hashes[run_start(block.position)] for block in blocks])
        case 3 | 4:
            parts = [(at, join_hashes(hashes[at : at + count])) for at, count in runs]
            return master.ask(Match(master.keyspace, parts, 3000, shards))
        case 5:
            return master.ask(Renew(master.keyspace, join_hashes(deepest), 3000, shards))
        case 9:
            return master.ask(PrefixSearch(master.spec, hashes).probe(0, shards))
        case 6:
            slices = [RunSlice(hashes[at + count - 1], at, count) for at, count in runs]
            return master.located(Locate(master.keyspace, 0, slices, b"", shards))
        case 7:
            items = [
                PutItem(
                    master.keyspace, 0, at, hashes[at - 1] if at else b"", join_hashes(hashes[at : at + count]), 1,
                    shard_of(master.keyspace, hashes[at], master.shards),
                )
                for at, count in runs
            ]  # fmt: skip
            reply = master.ask(PutStart(items))
            for item in items:
                master.ask(PutAbandon(item.keyspace, 0, item.hashes, dice.choice((item.shard, -1))))
            return reply
        case 8:
            chosen = dice.sample(hashes, 1)  # in a chain nobody can say which shard it is in
            return master.ask(Remove(master.keyspace, join_hashes(chosen), dice.random() < 0.5))
        case _:
            return master.ask(dice.choice((Pin, Unpin))(master.keyspace, join_hashes(deepest[:1])))
    return None


def flat_step(master: Master, dice: random.Random) -> object:
    """The same of a flat one."""
    hashes = dice.sample(chain(300, "flat"), dice.randrange(1, 100))
    shards, packed = master.column(hashes), join_hashes(hashes)
    match dice.randrange(8):
        case 0 | 1:
            master.commit([Block(one) for one in hashes], hashes)
        case 2:
            return master.ask(Presence(master.keyspace, packed, dice.choice((0, -1)), 3000, shards))
        case 3:
            return master.located(Locate(master.keyspace, 0, [], packed, shards))
        case 4:
            return master.ask(Remove(master.keyspace, packed[:160], True, shards=shards[:20]))
        case 5:
            return master.ask(Renew(master.keyspace, packed, 3000, shards))
        case 6:
            return master.ask(dice.choice((Pin, Unpin))(master.keyspace, packed[:160], shards=shards[:20]))
        case _:
            shard = dice.choice((shard_of(master.keyspace, hashes[0], master.shards), -1))
            try:
                return len(master.ask(Describe(master.keyspace, hashes[0], shard)).copies)  # type: ignore[attr-defined]
            except NotFound:
                return None
    return None


@pytest.mark.parametrize("spec", [chained_spec(), flat_spec()], ids=lambda spec: str(spec.kind))
def test_five_shards_answer_as_one(spec: KeyspaceSpec) -> None:
    one, five = both(spec)
    step = chained_step if spec.kind is Kind.CHAINED else flat_step
    answers = 0
    for seed in range(200):
        for master in (one, five):
            master.now_s = float(seed)
        expected = step(one, random.Random(seed))
        assert step(five, random.Random(seed)) == expected, seed
        answers += expected is not None
    assert answers > 100
    assert len(one.places) == len(five.places)
    for master in (one, five):
        master.core.validate()
        assert master.core.status(0.0)["copies"] == len(master.places) > 0
    assert one.ask(DescribeKeyspace(one.keyspace)).copies == five.ask(DescribeKeyspace(five.keyspace)).copies  # type: ignore[attr-defined]
    assert one.ask(Clear(one.keyspace)) == five.ask(Clear(five.keyspace))
    assert not one.places and not five.places


def test_need_takes_the_oldest_of_all_shards() -> None:
    master = Master(5, flat_spec())
    hashes = chain(100, "age")
    for index, block_hash in enumerate(hashes):
        master.now_s = float(index)
        master.commit([Block(block_hash)], [block_hash])
    reply = master.ask(Need(SEGMENT, 7, 40 * BLOCK_BYTES))
    assert isinstance(reply, Victims) and reply.freed_bytes == 40 * BLOCK_BYTES
    assert sorted(master.places) == list(range(40, 100))
    assert len({drop.shard for drop in reply.drops}) == 5
    assert reply.next_age_ms == 59_000


def test_a_shard_that_is_not_owned_is_refused_before_anything_changes() -> None:
    master = Master(5, flat_spec())
    hashes = chain(50, "x")
    master.commit([Block(one) for one in hashes], hashes)
    master.core.disown(3)
    removal = Remove(master.keyspace, join_hashes(hashes), True, shards=master.column(hashes))
    with pytest.raises(WrongShard, match="shard 3"):
        master.ask(removal)
    with pytest.raises(WrongShard, match="shard 3"):
        master.report(3, InventoryEnd())
    assert len(master.places) == 50
    whole = master.ask(Remove(master.keyspace, join_hashes(hashes), True))
    kept = sum(shard_of(master.keyspace, one, 5) == 3 for one in hashes)
    assert whole == Removed(50 - kept, 0, []) and len(master.places) == kept
    master.core.validate()


def test_a_shard_that_comes_back_is_empty_and_knows_all_keyspaces() -> None:
    master = Master(5, flat_spec())
    hashes = chain(50, "x")
    master.commit([Block(one) for one in hashes], hashes)
    master.core.disown(3)
    master.core.shards.own(3, 9)
    assert dict(master.core.shards.claims) == {0: 7, 1: 7, 2: 7, 4: 7}, "nodes hear of it when it is loaded"
    late = Report(SEGMENT, 1, 0, [InventoryEnd()], 3, 7)
    for loaded in (False, True):
        if loaded:
            master.core.shards.loaded(3)
        with pytest.raises(WrongShard, match="shard 3"):  # it is meant for an earlier owner
            master.ask(late)
    assert dict(master.core.shards.claims) == {0: 7, 1: 7, 2: 7, 3: 9, 4: 7}
    master.ask(msgspec.structs.replace(late, epoch=9))
    shards = master.column(hashes)
    bits = master.ask(Presence(master.keyspace, join_hashes(hashes), shards=shards)).bits  # type: ignore[attr-defined]
    assert [bool(bit) for bit in bits] == [shard != 3 for shard in shards[::2]]
    master.core.validate()


@pytest.mark.parametrize(
    "message",
    [
        Match(b"", [(0, bytes(16))]),
        Match(b"", [(0, bytes(16))], 1, b"\0"),
        Match(b"", [(0, bytes(16))], 1, bytes(4)),
        Match(b"", [(0, bytes(16))], 1, pack_u16([5])),
        PutStart([PutItem(b"", 0, 0, b"", bytes(16), 1, 1 << 63)]),
        PutStart([PutItem(b"", 0, 0, b"", bytes(16), 1, -1)]),
        Describe(b"", bytes(16), 5),
        Renew(b"", bytes(15), shards=bytes(2)),
    ],
)
def test_what_does_not_fit_is_refused(message: Message) -> None:
    master = Master(5, chained_spec())
    if isinstance(message, PutStart):
        items = [msgspec.structs.replace(item, keyspace=master.keyspace) for item in message.items]
        message = PutStart(items)
    else:
        message = msgspec.structs.replace(message, keyspace=master.keyspace)
    with pytest.raises(InvalidParams):
        master.ask(message)


def test_an_unknown_keyspace_is_named() -> None:
    with pytest.raises(KeyspaceUnknown):
        Master(5, chained_spec()).ask(Renew(bytes(16), bytes(16), shards=bytes(2)))


def test_requests_that_name_nothing_are_answered() -> None:
    master = Master(5, chained_spec())
    assert master.ask(Match(master.keyspace, [])).ready == []  # type: ignore[attr-defined]
    assert master.ask(PutStart([])) .answers == []  # type: ignore[attr-defined]  # fmt: skip
    assert master.ask(Renew(master.keyspace, b"")).bits == b""  # type: ignore[attr-defined]
    assert master.ask(Pin(master.keyspace, b"")) == Done(0)
