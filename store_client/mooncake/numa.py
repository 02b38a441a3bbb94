"""Binding a thread to a NUMA node."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def bind_to_numa_node(node: int) -> None:
    """Lets the calling thread run on the CPUs of that node only; the kernel then gives it that node's memory first.
    Nothing where there is no such node."""
    cpus = Path(f"/sys/devices/system/node/node{int(node)}/cpulist")
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, _parse(cpus.read_text()))


def _parse(text: str) -> set[int]:
    """The kernel's form of a set of CPUs: 0-3,8."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}
