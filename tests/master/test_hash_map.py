"""The map from hash to row: with filters before its dicts it says what it says without."""

from __future__ import annotations

import random
from itertools import pairwise

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
STRANGE = [object_hash(f"strange {number}") for number in range(2000)]

Step = st.tuples(
    st.sampled_from(["set", "remove", "name", "forget"]), st.integers(0, len(HASHES) - 1), st.integers(1, 900)
)


def present(lists: native.NameLists, hashes: list[bytes]) -> bytes:
    """What readers hear of rows that are all ready; they have missing filters built."""
    rows = len(HASHES)
    wide = [bytes(rows * size) for size in (2, 4, 8)]
    columns = (lists, SIZE, 1, b"\1" * rows, bytes(8 * rows), bytearray(8 * rows), *wide, None)
    return native.find_present(columns, b"".join(hashes), -1, None, 0.0)


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
            if native.HOT:
                assert present(self.map.lists, asked) == bytes(row != NO_ROW for row in rows)


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


def filtered(count: int) -> FilteredMap:
    """With so many names, and all filters."""
    names = FilteredMap()
    names.set_all(HASHES[:count], range(count))
    for _ in range(PARTS):
        present(names.lists, STRANGE)
    names.validate()
    assert all(names.lists[1])
    return names


@needs_c
def test_only_readers_who_miss_many_have_filters_built() -> None:
    names = FilteredMap()
    names.set_all(HASHES, range(len(HASHES)))
    assert present(names.lists, HASHES) == b"\1" * len(HASHES)
    assert present(names.lists, STRANGE[:10]) == bytes(10)
    assert names.find(b"".join(STRANGE), SIZE).max() == NO_ROW
    assert not any(names.lists[1]) and names.size_bytes() < HashMap().size_bytes() + len(HASHES) * 120
    for _ in range(PARTS):
        assert present(names.lists, STRANGE) == bytes(len(STRANGE))
    assert all(names.lists[1])
    assert 4 < sum(map(len, names.lists[1])) / len(HASHES) < 16


@needs_c
def test_one_search_builds_no_more_than_it_may() -> None:
    names = FilteredMap()
    many = [object_hash(f"many {number}") for number in range(40_000)]
    names.set_all(many, [0] * len(many))
    built = []
    for _ in range(3):
        present(names.lists, STRANGE)
        built.append(sum(map(bool, names.lists[1])))
    per_part = len(many) / PARTS
    assert all(
        4096 / per_part / 2 < now - before < 4096 / per_part * 2 for before, now in pairwise([0, *built])
    )
    names.validate()


@needs_c
def test_a_filter_that_is_outgrown_is_dropped() -> None:
    names = filtered(500)
    before = sum(map(len, names.lists[1]))
    names.set_all(HASHES[500:], range(500, len(HASHES)))
    assert sum(map(len, names.lists[1])) < before / 4
    names.validate()


@needs_c
def test_a_hash_that_was_told_twice_counts_once() -> None:
    names = filtered(300)
    for row in (1, 2):
        names.set(HASHES[400], row)
    assert names.get(HASHES[400]) == 2
    names.validate()
    names.remove(HASHES[400])
    names.validate()


@needs_c
def test_most_unknown_hashes_need_no_dict() -> None:
    """Each cell that is zero answers for its dict. Dicts that would say otherwise are not asked."""
    names = filtered(len(HASHES))
    for number, one in enumerate(STRANGE):
        names.lists[0][one[0] % PARTS][one] = number
    found = names.find(b"".join(STRANGE), SIZE)
    assert 0 < (found != NO_ROW).sum() < len(STRANGE) / 4
    assert names.find(b"".join(STRANGE[:10]), SIZE).tolist() == list(range(10)), "few are looked up at once"
    with pytest.raises(AssertionError, match="counts wrongly"):
        names.validate()


@needs_c
def test_a_full_cell_stays_full() -> None:
    names = filtered(300)
    cells = names.lists[1][HASHES[400][0] % PARTS]
    before = bytes(cells)
    names.set(HASHES[400], 0)
    [at] = [at for at, count in enumerate(cells) if count != before[at]]
    cells[at] = 254
    names.remove(HASHES[400])
    assert cells[at] == 253
    cells[at] = 255
    names.set(HASHES[400], 0)
    assert cells[at] == 255
    names.remove(HASHES[400])
    assert cells[at] == 255
    names.validate()


@needs_c
def test_what_is_no_map_is_refused() -> None:
    parts: list[dict[bytes, int]] = [{}, {}]
    wrong: list[object] = [
        *(parts, (parts,), (parts, [], []), (tuple(parts), []), ([], []), ([{}] * 3, []), ([{}] * 128, [])),
        *((parts, [bytearray(1)]), (parts, [bytearray(3)] * 2), (parts, [bytes(1)] * 2)),
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
