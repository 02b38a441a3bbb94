"""What writers are told of commits that a master has no use for, or may never have heard of."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from moonpool.schemas.errors import DeadlineExceeded, Unavailable
from moonpool.schemas.messages import Committed, PutAnswer, Status
from moonpool.store_client.node.reports import Surplus
from moonpool.store_client.node.seen_puts import when_seen, with_surplus, without_proof

OK, EXISTS, BUSY, GONE, FAILED = Status.OK, Status.EXISTS, Status.BUSY, Status.GONE, Status.FAILED


def test_surplus_is_told_by_its_generation() -> None:
    statuses = [bytes([OK, GONE, OK]), bytes([OK]), b""]
    generations = [[5, 6, 7], [8], []]
    assert with_surplus(statuses, generations, {}) is statuses
    surplus = {7: PutAnswer.EXISTS, 8: PutAnswer.BUSY, 6: PutAnswer.EXISTS, 99: PutAnswer.EXISTS}
    assert with_surplus(statuses, generations, surplus) == [bytes([OK, GONE, EXISTS]), bytes([BUSY]), b""]


def test_nothing_is_claimed_without_proof() -> None:
    assert without_proof([bytes([OK, GONE, OK]), b""]) == [bytes([FAILED, GONE, FAILED]), b""]


async def test_the_writer_hears_what_became_of_it() -> None:
    seen: Future[Surplus] = Future()
    answer = when_seen([bytes([OK, OK])], [[5, 6]], seen, 30.0)
    seen.set_result({6: PutAnswer.EXISTS})
    assert await answer == Committed([bytes([OK, EXISTS])])


async def test_a_stream_that_broke_proves_nothing() -> None:
    seen: Future[Surplus] = Future()
    answer = when_seen([bytes([OK, GONE])], [[5, 6]], seen, 30.0)
    seen.set_exception(Unavailable(peer="the master", retry_in_s=0.0))
    assert await answer == Committed([bytes([FAILED, GONE])])


async def test_nobody_waits_for_ever() -> None:
    seen: Future[Surplus] = Future()
    with pytest.raises(DeadlineExceeded):
        await when_seen([bytes([OK])], [[5]], seen, 0.01)
    assert seen.cancelled(), "its place among the waiters is free again"
