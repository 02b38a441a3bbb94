"""Mappings that huge pages fit."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.huge import collapses

from moonpool.store_client import huge_pages
from moonpool.store_client.huge_pages import HUGE_BYTES, REFUSALS_MAX, FileMapping

SIZE_BYTES = 12 * HUGE_BYTES + 4096


@pytest.fixture
def file(shm: Path) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=shm) as opened:
        os.ftruncate(opened.fileno(), SIZE_BYTES)
        yield opened.fileno()


def test_two_mappings_of_a_file_are_aligned_and_show_the_same_bytes(file: int) -> None:
    first, second = FileMapping(file, SIZE_BYTES), FileMapping(file, SIZE_BYTES)
    assert first.address % HUGE_BYTES == second.address % HUGE_BYTES == 0
    assert len(first.buffer) == len(first.bytes) == SIZE_BYTES
    first.buffer[SIZE_BYTES - 4 :] = b"last"
    assert bytes(second.buffer[-4:]) == b"last"
    assert os.pread(file, 4, SIZE_BYTES - 4) == b"last"
    for mapping in (first, second):
        mapping.close()


def test_it_is_not_unmapped_under_somebody_who_reads(file: int) -> None:
    mapping = FileMapping(file, SIZE_BYTES)
    view = np.frombuffer(mapping.buffer, dtype=np.uint8)
    with pytest.raises(BufferError):
        mapping.close()
    del mapping
    assert view[0] == 0
    del view


def test_closed_it_gives_its_addresses_back(file: int) -> None:
    maps, inode = Path("/proc/self/maps"), f" {os.fstat(file).st_ino} "
    mapping = FileMapping(file, SIZE_BYTES)
    assert inode in maps.read_text()
    mapping.close()
    assert inode not in maps.read_text()


def test_what_is_no_file_is_refused() -> None:
    read, write = os.pipe()
    with pytest.raises(OSError):
        FileMapping(read, SIZE_BYTES)
    os.close(read)
    os.close(write)


@pytest.mark.skipif(not collapses(), reason="this kernel doesn't lay shared memory into huge pages")
def test_bytes_stay_when_small_pages_become_huge_ones(file: int) -> None:
    mapping = FileMapping(file, SIZE_BYTES)
    content = np.random.default_rng(1).bytes(SIZE_BYTES // 2)
    mapping.buffer[: len(content)] = content
    assert mapping.huge_bytes() == 0
    mapping.use_huge_pages(file, 0, SIZE_BYTES)
    assert mapping.populate(0, SIZE_BYTES)
    assert 0 < mapping.huge_bytes() <= SIZE_BYTES
    assert bytes(mapping.buffer[: len(content)]) == content
    assert not any(mapping.buffer[len(content) :])
    mapping.close()


@pytest.mark.parametrize("number,tries", [(errno.EINVAL, 1), (errno.EAGAIN, REFUSALS_MAX)])
def test_a_kernel_that_refuses_is_not_asked_for_ever(
    file: int, monkeypatch: pytest.MonkeyPatch, number: int, tries: int
) -> None:
    asked: list[int] = []

    def refuse(_self: FileMapping, _start: int, size_bytes: int, _advice: int) -> bool:
        if size_bytes == HUGE_BYTES:
            asked.append(size_bytes)
        ctypes.set_errno(number)
        return False

    mapping = FileMapping(file, SIZE_BYTES)
    monkeypatch.setattr(huge_pages.FileMapping, "_advise", refuse)
    mapping.use_huge_pages(file, 0, SIZE_BYTES)
    assert len(asked) == tries
    mapping.close()


def test_memory_that_runs_out_is_told(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    mapping = FileMapping(file, SIZE_BYTES)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        mapping.use_huge_pages(file, 0, SIZE_BYTES)
    mapping.close()
