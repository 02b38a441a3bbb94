"""What writers are told of commits that a master has no use for, or may never have heard of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from moonpool.schemas.errors import DeadlineExceeded, Unavailable
from moonpool.schemas.messages import Committed, PutAnswer, Status
from moonpool.store_client.node.reports import Seen, Wait
from moonpool.store_client.node.seen_puts import SeenPuts, with_surplus, without_proof
from moonpool.store_client.rpc.later import Later

OK, EXISTS, BUSY, GONE, FAILED = Status.OK, Status.EXISTS, Status.BUSY, Status.GONE, Status.FAILED


def test_surplus_is_told_by_its_generation() -> None:
    statuses = [bytes([OK, GONE, OK]), bytes([OK]), b""]
    generations = [[5, 6, 7], [8], []]
    assert with_surplus(statuses, generations, {}) is statuses
    surplus = {7: PutAnswer.EXISTS, 8: PutAnswer.BUSY, 6: PutAnswer.EXISTS, 99: PutAnswer.EXISTS}
    assert with_surplus(statuses, generations, surplus) == [bytes([OK, GONE, EXISTS]), bytes([BUSY]), b""]


def test_nothing_is_claimed_without_proof() -> None:
    assert without_proof([bytes([OK, GONE, OK]), b""]) == [bytes([FAILED, GONE, FAILED]), b""]


class Stream:
    """Tells what it is told to."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []

    def watch(self, serials: Mapping[int, int], seen: Seen, *, unbroken: bool = False) -> Wait:
        self.waits.append(Wait(1, seen, unbroken=unbroken))
        return self.waits[-1]


def puts(stream: Stream, wait_s: float = 30.0) -> SeenPuts:
    core: Any = SimpleNamespace(reported={0: 1}, generations=[[5, 6]])
    return SeenPuts(core, stream.watch, wait_s, lambda shard: True)


def waiting(seen: SeenPuts, statuses: list[Status]) -> Later:
    answer = seen.answer([bytes(statuses)], visible=True)
    assert isinstance(answer, Later) and not answer.over
    return answer


async def test_who_wants_no_proof_waits_for_nobody() -> None:
    assert puts(Stream()).answer([b"\0"], visible=False) == Committed([b"\0"])


async def test_the_writer_hears_what_became_of_it_at_once() -> None:
    stream, told = Stream(), list[object]()
    waiting(puts(stream), [OK, OK]).listen(told.append)
    stream.waits[0].end({6: PutAnswer.EXISTS})
    assert told == [Committed([bytes([OK, EXISTS])])]
    stream.waits[0].end({})
    assert len(told) == 1


async def test_a_stream_that_broke_proves_nothing() -> None:
    stream = Stream()
    answer = waiting(puts(stream), [OK, GONE])
    stream.waits[0].end(Unavailable(peer="the master", retry_in_s=0.0))
    assert await answer == Committed([bytes([FAILED, GONE])])


async def test_a_thread_that_breaks_the_stream_leaves_the_telling_to_the_loop() -> None:
    stream, told = Stream(), list[object]()
    answer = waiting(puts(stream), [OK])
    answer.listen(lambda reply: told.append((reply, threading.get_ident())))
    thread = threading.Thread(target=stream.waits[0].end, args=({},))
    thread.start()
    thread.join()
    assert not told
    await asyncio.sleep(0)
    assert told == [(Committed([bytes([OK])]), threading.get_ident())]


async def test_nobody_waits_for_ever() -> None:
    stream = Stream()
    seen = puts(stream, wait_s=0.02)
    first = waiting(seen, [OK])
    await asyncio.sleep(0.01)
    second, third = waiting(seen, [OK]), waiting(seen, [OK])
    stream.waits[2].end({})
    for late in (first, second):
        with pytest.raises(DeadlineExceeded):
            await late
    assert await third == Committed([bytes([OK])])
    assert [wait.over for wait in stream.waits] == [True] * 3, "their places are free again"
    assert not seen._open and seen._timer is None


async def test_who_leaves_makes_room() -> None:
    stream = Stream()
    seen = puts(stream)
    told: list[object] = []
    answer = waiting(seen, [OK])
    answer.listen(told.append)
    answer.cancel()
    assert stream.waits[0].over and not seen._open and told == [None]
    stream.waits[0].end({})
    assert told == [None]
    task = asyncio.ensure_future(_wait_for(waiting(seen, [OK])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.waits[1].over and not seen._open


async def _wait_for(later: Later) -> object:
    return await later
