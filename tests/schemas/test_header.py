"""Slot headers: `holds` says yes to exactly the identity that was asked for (I3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.header import (
    GENERATION_MASK,
    HEADER_BYTES,
    HEADER_DTYPE,
    Headers,
    SlotState,
    generation_of,
    holds,
    keyspace_word,
    slot_number,
    state_of,
    word_of,
)

DIGEST = bytes(range(16))
HASH = bytes(range(1, 33))


def header(**change: object) -> Headers:
    found = np.zeros(1, dtype=HEADER_DTYPE)
    facts = {
        "word": word_of(SlotState.COMMITTED, 7),
        "keyspace": keyspace_word(DIGEST),
        "rank": 1,
        "hash_bytes": 32,
        "block_hash": HASH,
        "length": 4096,
    }
    for name, value in (facts | change).items():
        found[name] = value
    return found


def asked(headers: Headers) -> bool:
    answer = holds(
        headers,
        np.array([7], dtype=np.uint64),
        keyspace_word(DIGEST),
        1,
        np.array([HASH], dtype="S32"),
        np.array([4096], dtype=np.uint64),
    )
    return bool(answer[0])


def test_the_exact_identity_holds() -> None:
    assert asked(header())
    assert asked(header(checksum=1, session=2, put_id=3, position=4, parent_hash=b"p", shard=5, flags=6))


@pytest.mark.parametrize(
    "change",
    [
        {"word": word_of(SlotState.WRITING, 7)},
        {"word": word_of(SlotState.FREE, 7)},
        {"word": word_of(SlotState.COMMITTED, 8)},
        {"word": 0},
        {"word": 2**64 - 1},
        {"keyspace": keyspace_word(DIGEST) + 1},
        {"rank": 0},
        {"block_hash": HASH[:31] + b"\xff"},
        {"block_hash": HASH[:16]},
        {"length": 4095},
    ],
)
def test_any_other_identity_does_not(change: dict[str, object]) -> None:
    assert not asked(header(**change))


def test_memory_that_was_never_a_header_does_not() -> None:
    noise = np.random.default_rng(1).integers(0, 256, HEADER_BYTES * 100, dtype=np.uint8)
    for start in range(0, len(noise), HEADER_BYTES):
        assert not asked(noise[start : start + HEADER_BYTES].view(HEADER_DTYPE))
    assert not asked(np.zeros(1, dtype=HEADER_DTYPE))


def test_a_hash_may_end_in_zeros() -> None:
    ending = HASH[:30] + b"\0\0"
    found = header(block_hash=ending)
    answer = holds(
        found,
        np.array([7], dtype=np.uint64),
        keyspace_word(DIGEST),
        1,
        np.array([ending], dtype="S32"),
        np.array([4096], dtype=np.uint64),
    )
    assert answer.all()


@settings(derandomize=True, deadline=None)
@given(state=st.sampled_from(SlotState), generation=st.integers(0, GENERATION_MASK))
def test_words_round_trip(state: SlotState, generation: int) -> None:
    word = word_of(state, generation)
    assert 0 <= word < 2**64
    assert (state_of(word), generation_of(word)) == (state, generation)


def test_slot_numbers_are_page_and_index() -> None:
    assert slot_number(3, 5) == 3 << 16 | 5
