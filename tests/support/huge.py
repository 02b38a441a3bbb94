"""Whether this kernel lays shared memory into huge pages when it is asked to."""

from __future__ import annotations

import os
from pathlib import Path


def collapses() -> bool:
    """Since Linux 6.1, where pages have 4 KiB and nobody has turned it off."""
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    says = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    small = os.sysconf("SC_PAGE_SIZE") == 4096
    return release >= (6, 1) and small and says.exists() and "[deny]" not in says.read_text()
