"""What killed engines leave in /dev/shm: vLLM removes its shared memory only where it ends of itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAMES = ("psm_", "vllm_dist_")


def mapped_by_group(group: int) -> set[Path]:
    """vLLM's files that processes of a process group have mapped."""
    found: set[Path] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if os.getpgid(int(folder.name)) == group:
                paths = [line.split(maxsplit=5)[-1] for line in (folder / "maps").read_text().splitlines()]
                found |= {Path(path) for path in paths if path.startswith("/dev/shm/")}
    return {path for path in found if path.name.startswith(NAMES)}


def remove(paths: set[Path]) -> None:
    """Those that are still there."""
    for path in paths:
        path.unlink(missing_ok=True)
