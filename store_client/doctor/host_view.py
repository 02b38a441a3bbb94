"""Where the doctor reads from: the seam to this host. A test gives it folders and numbers of its own."""

from __future__ import annotations

import importlib.metadata
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


def file_system_room(folder: Path) -> tuple[int, int]:
    """(bytes of the file system, bytes that are free). Raises OSError."""
    status = os.statvfs(folder)
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def locked_memory_limit() -> int:
    """Bytes that this process may lock; -1: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return -1 if soft == resource.RLIM_INFINITY else soft


def package_version(name: str) -> str | None:
    """Of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class HostView:
    """The roots that probes read under, and what no folder can tell."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    memlock_bytes: int = field(default_factory=locked_memory_limit)
    room: Callable[[Path], tuple[int, int]] = file_system_room
    version_of: Callable[[str], str | None] = package_version

    def text(self, path: Path) -> str:
        """A small file's text, stripped; empty where it can't be read."""
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return ""

    def folders(self, path: Path) -> list[Path]:
        """What lies in a folder, by name; nothing where it isn't there."""
        try:
            return sorted(path.iterdir())
        except OSError:
            return []
