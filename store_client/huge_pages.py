"""Shared memory in huge pages (2 MiB), without privileges: mapped where they fit, and collapsed into them.

With pages of 4 KiB a copy of 64 KiB walks 16 of them, and each has to be found in the page tables again once it has left
the TLB. In a virtual machine it can be far worse: whatever the hypervisor has taken from us while a page lay idle has to
be had back page by page, at 10 to 40 us each where this was measured.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import numpy as np

from moonpool.schemas.packed import U8
from moonpool.store_client.raw_memory import MAP_NORESERVE, address_of, map_over

HUGE_BYTES = 2 << 20
"""On x86-64, and on arm64 with pages of 4 KiB. Elsewhere the kernel refuses to collapse, and all goes on without."""

_MADV_POPULATE_WRITE = 23  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1: whatever the mount and shmem_enabled say, short of "deny"

REFUSALS_MAX = 8
"""In a row: the kernel looks for free memory in one piece each time, which takes it milliseconds."""

_HUGE_FIELDS = ("ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb")

# By ctypes, which lets other threads run meanwhile. Python's mmap.madvise doesn't.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class FileMapping:
    """A file in memory, shared and writable, from an address that is a multiple of HUGE_BYTES on."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Raises OSError. `fd` may be closed afterwards."""
        # Python's mmap chooses no addresses. This one only keeps addresses, with room to choose among, for the file to be
        # laid over: it goes with its last user, and refuses to go before.
        unit = max(HUGE_BYTES, os.fstatvfs(fd).f_bsize)  # a hugetlbfs may have larger ones
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._around = mmap.mmap(-1, _round_up(size_bytes, unit) + unit, flags=flags)
        first = address_of(np.frombuffer(self._around, dtype=np.uint8))
        self.address = _round_up(first, unit)
        if not map_over(self.address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        start = self.address - first
        self.buffer = memoryview(self._around)[start : start + size_bytes]
        self.bytes: U8 = np.frombuffer(self.buffer, dtype=np.uint8)

    def use_huge_pages(self, fd: int, start: int, size_bytes: int) -> None:
        """Has the kernel lay a range, which may have holes, into huge pages, as far as it can. Changes no byte. Raises OSError:
        there is no memory left."""
        self._advise(start, size_bytes, mmap.MADV_HUGEPAGE)  # enough where the mount says huge=advise
        refused = 0
        for piece in range(_round_up(start, HUGE_BYTES), start + size_bytes - HUGE_BYTES + 1, HUGE_BYTES):
            os.posix_fallocate(fd, piece, mmap.PAGESIZE)  # a hole is not collapsed
            if self._advise(piece, HUGE_BYTES, _MADV_COLLAPSE):
                refused = 0
                continue
            refused += 1
            never = ctypes.get_errno() == errno.EINVAL  # no such call, or no such pages here
            if never or refused == REFUSALS_MAX:
                break

    def populate(self, start: int, size_bytes: int) -> bool:
        """Fills this process's page tables without changing a byte. False where the kernel can't."""
        return self._advise(start, size_bytes, _MADV_POPULATE_WRITE)

    def huge_bytes(self) -> int:
        """How much of it this process sees in huge pages; 0 where the kernel doesn't say."""
        try:
            lines = Path("/proc/self/smaps").read_text().splitlines()
        except OSError:
            return 0
        end, total, inside = self.address + len(self.buffer), 0, False
        # A mapping's first line has its addresses. Advice may have cut ours into several.
        for line in lines:
            name, _, rest = line.partition(":")
            if name in _HUGE_FIELDS:
                total += inside * int(rest.split()[0]) << 10
            elif "-" in name:
                inside = self.address <= int(name.partition("-")[0], 16) < end
        return total

    def close(self) -> None:
        """Unmaps. Raises BufferError while somebody still holds a view."""
        del self.bytes
        self.buffer.release()
        self._around.close()

    def _advise(self, start: int, size_bytes: int, advice: int) -> bool:
        return not _libc.madvise(self.address + start, size_bytes, advice)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
