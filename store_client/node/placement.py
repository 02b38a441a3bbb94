"""Where and how a segment's memory is laid down by the kernel. Wishes: one that can't be had costs a log line."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
from pathlib import Path

logger = logging.getLogger(__name__)

_SHMEM_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND = 2
_NODES_MAX = 1024


def use_huge_pages(buffer: mmap.mmap, data_offset: int) -> bool:
    """Asks for huge pages from `data_offset` on. False, and a log line, where this kernel gives none."""
    try:
        mode = _SHMEM_HUGE.read_text()
        if "[never]" in mode or "[deny]" in mode:
            raise OSError(0, f"{_SHMEM_HUGE} says {mode.strip()}; echo advise into it")
        buffer.madvise(mmap.MADV_HUGEPAGE, data_offset)
    except OSError as error:
        logger.warning("huge pages were asked for and are not used: %s", error.strerror)
        return False
    logger.info("the segment uses huge pages")
    return True


def bind_to_numa_node(buffer: mmap.mmap, node: int) -> bool:
    """Binds the mapping's memory, not allocated yet, to one NUMA node. False, and a log line, where that fails."""
    number = _MBIND.get(platform.machine())
    if number is None or node >= _NODES_MAX:
        logger.warning("memory is not bound to NUMA node %d: not known how on this machine", node)
        return False
    mask = (ctypes.c_ulong * (_NODES_MAX // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    word, bit = divmod(node, 8 * ctypes.sizeof(ctypes.c_ulong))
    mask[word] = 1 << bit
    anchor = ctypes.c_char.from_buffer(buffer)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(ctypes.addressof(anchor)),
        ctypes.c_ulong(len(buffer)),
        ctypes.c_int(_MPOL_BIND),
        mask,
        ctypes.c_ulong(_NODES_MAX + 1),
        ctypes.c_uint(0),
    )
    if result:
        logger.warning("memory is not bound to NUMA node %d: %s", node, os.strerror(ctypes.get_errno()))
        return False
    logger.info("the segment's memory is bound to NUMA node %d", node)
    return True
