"""The map from hash to row: with filters before its dicts it says what it says without."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master.columns import NO_ROW
from moonpool.master.hash_map import PARTS, FilteredMap, HashMap
from moonpool.schemas.keyspace import object_hash
from moonpool.store_client import native

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
MAPS = [HashMap, pytest.param(FilteredMap, marks=needs_c)]
SIZE = 16


def hash_of(number: int) -> bytes:
    """A good one, or a poor one: engines name blocks as they like."""
    return (
        object_hash(str(number)) if number % 3 else number.to_bytes(SIZE, "little" if number % 2 else "big")
    )


HASHES = [hash_of(number) for number in range(1, 3000)]

Step = st.tuples(
    st.sampled_from(["set", "remove", "name", "forget"]), st.integers(0, len(HASHES) - 1), st.integers(1, 900)
)


class Checked:
    """A map and what it should say."""

    def __init__(self, kind: type[HashMap]) -> None:
        self.map = kind()
        self.model: dict[bytes, int] = {}
        self.names = [b""] * len(HASHES)

    def step(self, action: str, first: int, count: int) -> None:
        some = HASHES[first : first + count]
        known = [one for one in some if one in self.model]
        if action == "set":
            few = some[:20]
            self.map.set_all(few[1:], range(first + 1, first + len(few)))
            self.map.set(few[0], first)
            self.model |= {one: first + index for index, one in enumerate(few)}
            self.names[first : first + len(few)] = few
        elif action == "remove":
            for one in known[:20]:
                self.map.remove(one)
                self.names[self.model.pop(one)] = b""
        elif action == "name":
            rows = list(range(first, first + len(some)))
            named = native.name_rows(self.map.lists, self.names, b"".join(some), SIZE, rows)
            assert named == (not known)
            if named:
                self.model |= dict(zip(some, rows, strict=True))
        elif action == "forget":
            rows = [self.model.pop(one) for one in known]
            assert native.forget_rows(self.map.lists, self.names, SIZE, rows) == b"".join(known)

    def check(self) -> None:
        self.map.validate()
        assert dict(self.map.items()) == self.model and len(self.map) == len(self.model)
        for asked in (HASHES, HASHES[:5], HASHES[-40:] * 2):
            rows = [self.model.get(one, NO_ROW) for one in asked]
            assert self.map.find(b"".join(asked), SIZE).tolist() == rows == self.map.get_all(asked)


@pytest.mark.parametrize("kind", MAPS)
@settings(derandomize=True, deadline=None, max_examples=25)
@given(steps=st.lists(Step, max_size=12))
def test_it_says_what_it_was_told(kind: type[HashMap], steps: list[tuple[str, int, int]]) -> None:
    checked = Checked(kind)
    for step in steps:
        checked.step(*step)
        checked.check()


@pytest.mark.parametrize("kind", MAPS)
def test_it_grows_and_empties(kind: type[HashMap]) -> None:
    checked = Checked(kind)
    for first in range(0, len(HASHES), 500):
        checked.step("name", first, 500)
        checked.check()
    for first in random.Random(3).sample(range(len(HASHES)), 40):
        checked.step("remove", first, 20)
        checked.step("set", first, 7)
    checked.check()
    checked.step("forget", 0, len(HASHES))
    checked.check()
    assert not len(checked.map)
    with pytest.raises(KeyError):
        checked.map.remove(HASHES[0])


@needs_c
def test_a_hash_that_was_told_twice_counts_once() -> None:
    filtered = FilteredMap()
    for row in (1, 2):
        filtered.set(HASHES[0], row)
    assert filtered.get(HASHES[0]) == 2
    filtered.validate()
    filtered.remove(HASHES[0])
    filtered.validate()
    assert not any(map(any, filtered.lists[1]))


@needs_c
def test_most_unknown_hashes_need_no_dict() -> None:
    """Each cell that is zero answers for its dict. Dicts that would say otherwise are not asked."""
    filtered = FilteredMap()
    for row, one in enumerate(HASHES):
        filtered.set(one, row)
    strange = [object_hash(f"strange {number}") for number in range(2000)]
    for number, one in enumerate(strange):
        filtered.lists[0][one[0] % PARTS][one] = number
    found = filtered.find(b"".join(strange), SIZE)
    assert 0 < (found != NO_ROW).sum() < len(strange) / 5
    assert filtered.find(b"".join(strange[:10]), SIZE).tolist() == list(range(10)), (
        "few are looked up at once"
    )
    with pytest.raises(AssertionError, match="counts wrongly"):
        filtered.validate()


@needs_c
def test_a_full_cell_stays_full() -> None:
    filtered = FilteredMap()
    cells = filtered.lists[1][HASHES[0][0] % PARTS]
    filtered.set(HASHES[0], 0)
    cells = filtered.lists[1][HASHES[0][0] % PARTS]
    at = cells.index(1)
    cells[at] = 254
    filtered.remove(HASHES[0])
    assert cells[at] == 253
    cells[at] = 255
    filtered.set(HASHES[0], 0)
    assert cells[at] == 255
    filtered.remove(HASHES[0])
    assert cells[at] == 255
    filtered.validate()


@needs_c
def test_what_is_no_map_is_refused() -> None:
    parts: list[dict[bytes, int]] = [{}, {}]
    wrong: list[object] = [
        *(parts, (parts,), (parts, [], []), (tuple(parts), []), ([], []), ([{}] * 3, []), ([{}] * 128, [])),
        *(
            (parts, [bytearray(1)]),
            (parts, [bytearray(3)] * 2),
            (parts, [bytearray()] * 2),
            (parts, [bytes(1)] * 2),
        ),
    ]
    for lists in wrong:
        with pytest.raises(ValueError):
            native.find_rows(lists, bytes(SIZE * 40), SIZE)  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            native.name_rows(lists, [b""], bytes(SIZE), SIZE, [0])  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            native.set_name(lists, bytes(SIZE), 0)  # type: ignore[arg-type]
    for block_hash in ("text", b"", None):
        with pytest.raises((TypeError, ValueError)):
            native.set_name((parts, []), block_hash, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        native.find_rows((parts, []), bytes(SIZE + 1), SIZE)
    assert parts == [{}, {}]
