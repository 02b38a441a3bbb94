"""What writers are told of commits that a master has no use for, or may never have heard of."""

from __future__ import annotations

from moonpool.schemas.messages import PutAnswer, Status
from moonpool.store_client.node.seen_puts import with_surplus, without_proof

OK, EXISTS, BUSY, GONE, FAILED = Status.OK, Status.EXISTS, Status.BUSY, Status.GONE, Status.FAILED


def test_surplus_is_told_by_its_generation() -> None:
    statuses = [bytes([OK, GONE, OK]), bytes([OK]), b""]
    generations = [[5, 6, 7], [8], []]
    assert with_surplus(statuses, generations, {}) is statuses
    surplus = {7: PutAnswer.EXISTS, 8: PutAnswer.BUSY, 6: PutAnswer.EXISTS, 99: PutAnswer.EXISTS}
    assert with_surplus(statuses, generations, surplus) == [bytes([OK, GONE, EXISTS]), bytes([BUSY]), b""]


def test_nothing_is_claimed_without_proof() -> None:
    assert without_proof([bytes([OK, GONE, OK]), b""]) == [bytes([FAILED, GONE, FAILED]), b""]
