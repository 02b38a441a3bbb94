"""Where and how a segment's memory is laid down by the kernel. Wishes: one that can't be had costs a log line."""

from __future__ import annotations

import ctypes
import logging
import os
import platform

from moonpool.store_client.huge_pages import FileMapping

logger = logging.getLogger(__name__)

_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND = 2
_NODES_MAX = 1024


def bind_to_numa_node(mapping: FileMapping, node: int) -> bool:
    """Binds the mapping's memory, not allocated yet, to one NUMA node. False, and a log line, where that fails."""
    number = _MBIND.get(platform.machine())
    if number is None or node >= _NODES_MAX:
        logger.warning("memory is not bound to NUMA node %d: not known how on this machine", node)
        return False
    mask = (ctypes.c_ulong * (_NODES_MAX // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    word, bit = divmod(node, 8 * ctypes.sizeof(ctypes.c_ulong))
    mask[word] = 1 << bit
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(mapping.address),
        ctypes.c_ulong(len(mapping.buffer)),
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
