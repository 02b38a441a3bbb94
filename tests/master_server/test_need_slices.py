"""Room for a node is made in slices, and what was found is told whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec import structs

from moonpool.master.drops import LOCATIONS_A_LIST
from moonpool.master.need_slices import SHORT_S, SLICE_BYTES, SLICES_MAX, answer_need, joined
from moonpool.schemas.errors import MoonpoolError, Unavailable
from moonpool.schemas.messages import DropList, Message, Need, Victims

OBJECT_BYTES = 3 << 20


class Index:
    """So many equal objects; after some requests it refuses. `slice_s`: how long each takes."""

    def __init__(self, objects: int, refuses_after: int = 1 << 30, slice_s: float = 1.0) -> None:
        self.clock_s = 0.0
        self._slice_s = slice_s
        self.objects = objects
        self.asked: list[int] = []
        self._refuses_after = refuses_after

    def answer(self, message: Message) -> Message:
        assert isinstance(message, Need)
        if len(self.asked) == self._refuses_after:
            raise Unavailable(peer="the master", retry_in_s=1.0)
        self.asked.append(message.want_bytes)
        count = min(self.objects, -(-message.want_bytes // OBJECT_BYTES))
        self.objects -= count
        self.clock_s += self._slice_s
        drops = [DropList(bytes(32), bytes(2), bytes(16), bytes(4), bytes(8))] * count
        return Victims(drops, count * OBJECT_BYTES, self.objects, [(0, 7)] if count else [])


async def ask(index: Index, want_bytes: int) -> Victims:
    answer = answer_need(Need(bytes(16), 7, want_bytes), index.answer, lambda: index.clock_s)
    reply = await answer if isinstance(answer, Awaitable) else answer
    assert isinstance(reply, Victims)
    assert objects(reply) * OBJECT_BYTES == reply.freed_bytes
    assert all(len(one.slots) == 2 * len(one.ranks) == len(one.hashes) // 4 for one in reply.drops)
    assert len(reply.drops) <= 1, "in as few lists as may be"
    return reply


def objects(victims: Victims) -> int:
    return sum(len(one.generations) // 8 for one in victims.drops)


@pytest.mark.parametrize("want_bytes", [0, 1, SLICE_BYTES])
async def test_little_is_found_at_once(want_bytes: int) -> None:
    index = Index(10)
    assert isinstance(answer_need(Need(bytes(16), 7, want_bytes), index.answer), Victims)
    assert index.asked == [want_bytes]


@pytest.mark.parametrize("want_bytes", [3 * SLICE_BYTES, 64 << 20, 1 << 30])
async def test_much_is_found_in_bounded_slices(want_bytes: int) -> None:
    index, passes = Index(1000), 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(count_passes())
    found = await ask(index, want_bytes)
    others.cancel()
    assert want_bytes <= found.freed_bytes < want_bytes + OBJECT_BYTES
    assert 2 <= len(index.asked) <= SLICES_MAX
    assert passes >= len(index.asked) - 1, "others are served between two slices"
    assert found.claims == [(0, 7)] and found.next_age_ms == index.objects


async def test_slices_grow_while_they_are_short() -> None:
    slow, quick = Index(1000, slice_s=SHORT_S), Index(1000, slice_s=SHORT_S / 2)
    for index in (slow, quick):
        await ask(index, 64 << 20)
    assert max(slow.asked) == SLICE_BYTES
    assert quick.asked[:3] == [SLICE_BYTES, 2 * SLICE_BYTES, 4 * SLICE_BYTES]
    assert len(quick.asked) <= 5


def test_lists_of_one_keyspace_after_the_other_are_joined() -> None:
    one = DropList(b"k", b"aa", b"hash", b"slot", b"generate", 1)
    other = structs.replace(one, keyspace=b"l")
    twice = DropList(b"k", b"aaaa", b"hashhash", b"slotslot", b"generategenerate", 1)
    elsewhere = structs.replace(one, shard=2)
    assert joined([one, one, other, one, elsewhere]) == [twice, other, one, elsewhere]
    long = structs.replace(one, ranks=bytes(2 * LOCATIONS_A_LIST))
    assert joined([long, one]) == [long, one]
    assert joined([]) == []


async def test_it_ends_where_there_is_too_little() -> None:
    index = Index(3)
    found = await ask(index, 64 << 20)
    assert objects(found) == 3 and len(index.asked) == 2
    assert found.claims == [(0, 7)]


async def test_what_was_found_is_told_also_by_a_master_that_is_deposed_half_way() -> None:
    assert objects(await ask(Index(1000, refuses_after=2), 64 << 20)) == 4
    with pytest.raises(MoonpoolError):
        await ask(Index(1000, refuses_after=0), 64 << 20)
