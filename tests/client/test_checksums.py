"""Checksums: in C as the library has them, of objects in any pieces, and of exactly what a read has copied."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash

from moonpool.schemas.header import HEADER_DTYPE, SLOT_INDEX_BITS, SlotState, word_of
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8, U64
from moonpool.store_client import native
from moonpool.store_client.checksums import checksum_of, mismatches, python_sums, sums
from moonpool.store_client.fragments import Fragments

Summing = Callable[[Fragments, U64], U64]
WAYS: list[Summing] = [sums, python_sums]
BYTES: U8 = np.random.default_rng(7).integers(0, 256, 70_000, dtype=np.uint8)
BYTES[:1000] = 0
needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


def objects_of(cuts: list[list[int]]) -> Fragments:
    """Objects at the start of BYTES, each in pieces of these sizes. Empty pieces lie nowhere."""
    address = BYTES.ctypes.data
    starts = [[address + sum(sizes[:i]) if size else 0 for i, size in enumerate(sizes)] for sizes in cuts]
    return Fragments.lists(starts, cuts)


def right(objects: Fragments) -> list[int]:
    return [xxhash.xxh3_64_intdigest(BYTES[:length].data) for length in objects.lengths().tolist()]


def all_of(objects: Fragments) -> U64:
    return np.ones(objects.count, dtype=np.uint64)


@pytest.mark.parametrize("way", WAYS)
def test_objects_of_every_length(way: Summing) -> None:
    """Each of XXH3's formulas, and its blocks of 1,024 bytes up to the third."""
    objects = objects_of([[length] for length in [*range(3200), 65_535, 65_536, 65_537, len(BYTES)]])
    assert way(objects, all_of(objects)).tolist() == right(objects)


@pytest.mark.parametrize("way", WAYS)
def test_objects_in_pieces_of_every_kind(way: Summing) -> None:
    """Pieces that end inside a stripe of 64 bytes, at one, and nowhere."""
    random = np.random.default_rng(3)
    cuts: list[list[int]] = [[]]
    for longest in (3, 64, 65, 130, 1024, 5000, 9000):
        for count in range(1, 12):
            cuts.append(random.integers(0, longest, count).tolist())
    cuts += [
        [64] * 40,
        [512] * 128,
        [63, 1] * 200,
        [4096, 4096, 1],
        [0, 240],
        [239, 0, 1],
        [240, 1],
        [1, 240],
    ]
    objects = objects_of(cuts)
    assert way(objects, all_of(objects)).tolist() == right(objects)


@pytest.mark.parametrize("way", WAYS)
def test_only_what_is_wanted_is_summed(way: Summing) -> None:
    objects = objects_of([[5000], [300, 100], [7]])
    wanted = np.array([0, 9, 0], dtype=np.uint64)
    assert way(objects, wanted).tolist() == [0, right(objects)[1], 0]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_several_threads_sum_the_same(threads: int) -> None:
    """What is less than a few megabytes is summed by the caller alone."""
    objects = objects_of([[len(BYTES) - i] for i in range(100)])
    assert sums(objects, all_of(objects), threads).tolist() == right(objects)


def test_zero_means_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = objects_of([[5000], [300]])
    told = np.array([0, 1], dtype=np.uint64)
    assert mismatches(objects, told).tolist() == [False, True]
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda payload: 0)
    assert checksum_of(memoryview(b"x")) == 1


class SumOfC(ctypes.Structure):
    """Sum of hot_sum.h, and room to spare."""

    _fields_ = (("bytes", ctypes.c_char * 1024),)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """hot_sum.c as it runs on processors without AVX2, and not on x86: nobody has called hot_choose_sum."""
    compiler, source = shutil.which("gcc"), Path(native.__file__).with_name("hot_sum.c")
    if compiler is None or not source.exists():
        pytest.skip("no compiler, or no source")
    library = tmp_path_factory.mktemp("sums") / "sums.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O3", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.hot_sum_end.restype = ctypes.c_uint64
    return loaded


@pytest.mark.parametrize("how", [0, 1, 2])
def test_processors_of_other_kinds_sum_the_same(plain: ctypes.CDLL, how: int) -> None:
    for length in [*range(300), 1023, 1024, 1025, 2048, 2049, 65_536, len(BYTES)]:
        for step in (len(BYTES), 64, 100, 1000):
            state, copy = SumOfC(), ctypes.create_string_buffer(length + 1)
            plain.hot_sum_begin(ctypes.byref(state), ctypes.c_uint64(length))
            for first in range(0, length, step):
                size = min(step, length - first)
                to = ctypes.byref(copy, first) if how else None
                source = ctypes.c_void_p(BYTES.ctypes.data + first)
                plain.hot_sum_add(ctypes.byref(state), to, source, ctypes.c_uint64(size), how)
            told = plain.hot_sum_end(ctypes.byref(state))
            assert told == xxhash.xxh3_64_intdigest(BYTES[:length].data)
            assert not how or copy.raw == BYTES[:length].tobytes() + b"\0"


@needs_c
def test_columns_that_do_not_fit_are_refused() -> None:
    objects = objects_of([[5000], [300]])
    with pytest.raises(ValueError, match="fit"):
        sums(objects, np.ones(1, dtype=np.uint64))
    longer = Fragments(objects.addresses, objects.sizes, objects.offsets, objects.lengths() + np.uint64(1))
    with pytest.raises(ValueError, match="fit"):
        sums(longer, all_of(longer))


class OwnSegment:
    """Slots in memory of the test's own, each a page, and the objects that were copied out of them."""

    def __init__(self, sizes: list[int]) -> None:
        slots, page_bytes = len(sizes), max(sizes) + 64
        self.data = np.random.default_rng(1).integers(0, 256, (slots, page_bytes), dtype=np.uint8)
        self.headers = np.zeros(slots, dtype=HEADER_DTYPE)
        self.headers["word"] = word_of(SlotState.COMMITTED, 5)
        self.headers["length"] = sizes
        self.headers["checksum"] = [
            checksum_of(row[:size].data) for row, size in zip(self.data, sizes, strict=True)
        ]
        self._cut = np.full(slots, page_bytes, dtype=np.uint32)
        places = [one.ctypes.data for one in (self.data, self.headers, self._cut)]
        self._layout = np.array([*places, page_bytes, slots, 1], dtype=np.uint64)
        self._slots = np.arange(slots, dtype=np.uint32) << np.uint32(SLOT_INDEX_BITS)
        self.into = np.zeros((slots, page_bytes), dtype=np.uint8)
        starts = [row.ctypes.data for row in self.into]
        cuts = [min(size, 1000) for size in sizes]  # two pieces each, the first one short
        self._pieces = Fragments.lists(
            [[start, start + cut] for start, cut in zip(starts, cuts, strict=True)],
            [[cut, size - cut] for size, cut in zip(sizes, cuts, strict=True)],
        )

    def read(self, *, verify: bool) -> list[int]:
        """Statuses. What is OK has been copied, and nothing beside it."""
        self.into[:] = 0
        generations = np.full(len(self._slots), 5, dtype=np.uint64)
        hashes = np.zeros(len(self._slots), dtype="S32")
        lengths = self._pieces.lengths()
        statuses = native.read_slots(
            self._layout, self._slots, generations, lengths, hashes, 0, 0, self._pieces, verify
        ).tolist()
        for i, length in enumerate(lengths.tolist()):
            assert (self.into[i, :length] == self.data[i, :length]).all() and not self.into[i, length:].any()
        return statuses


@needs_c
@pytest.mark.parametrize("sizes", [[5000], [64 << 10] * 100, [100, 200, 300_000], [0, 1, 240, 241]])
def test_a_read_sums_what_it_copied(sizes: list[int]) -> None:
    """Slots in memory of our own: one byte of one object is another one than its header's checksum was taken of."""
    segment = OwnSegment(sizes)
    assert segment.read(verify=True) == [Status.OK] * len(sizes)
    for wrong in range(len(sizes)):
        if sizes[wrong]:
            segment.data[wrong, sizes[wrong] // 2] ^= 1
            assert segment.read(verify=True) == [
                Status.CORRUPT if i == wrong else Status.OK for i in range(len(sizes))
            ]
            assert segment.read(verify=False) == [Status.OK] * len(sizes)
            segment.data[wrong, sizes[wrong] // 2] ^= 1
    segment.headers["checksum"][0] = 0  # not known yet
    segment.data[0] ^= 1
    assert segment.read(verify=True) == [Status.OK] * len(sizes)
    segment.headers["word"][-1] += 1
    assert segment.read(verify=True) == [Status.OK] * (len(sizes) - 1) + [Status.MISSING]
