"""The segment file: made, mapped, locked, found again. Never truncated, only unlinked: a mapped reader must not die."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from moonpool.schemas.errors import ConfigError
from moonpool.schemas.header import HEADER_BYTES
from moonpool.schemas.units import format_size
from moonpool.store_client.host import boot_id
from moonpool.store_client.huge_pages import FileMapping
from moonpool.store_client.node.layout import HEAD_BYTES, HEAD_MAGIC, Head, Layout
from moonpool.store_client.node.placement import bind_to_numa_node

logger = logging.getLogger(__name__)

PIECE_BYTES = 256 << 20
"""Between two of them whoever waits is told how far it is."""

Progress = Callable[[int, int], None]
"""Told the bytes that are done, and those that are to be."""


class Segment:
    """A mapped segment file under an exclusive flock. `adopted`: it holds what an earlier process left."""

    def __init__(self, path: Path, fd: int, mapping: FileMapping, head: Head, adopted: bool) -> None:
        self.path = path
        self.head = head
        self.adopted = adopted
        self.mapping = mapping
        self.buffer = mapping.buffer
        self._fd = fd
        self._short = False

    def reserve_headers(self, page: int, slots: int) -> bool:
        """Allocates the memory of a page's headers; idempotent."""
        layout = self.head.layout
        start = layout.header_offset + page * layout.headers_per_page * HEADER_BYTES
        try:
            os.posix_fallocate(self._fd, start, slots * HEADER_BYTES)
        except OSError as error:
            if not self._short:  # said once, not for every put that is refused because of it
                logger.error("no memory for the headers of page %d: %s", page, error.strerror)
            self._short = True
            return False
        self._short = False
        return True

    def prefault(self, progress: Progress) -> None:
        """Touches all pages, so that no put or get pays for it. Changes no byte."""
        for start, size in _pieces(self.head.layout, progress):
            populate(self.mapping, start, size)

    def unlink(self) -> None:
        """Removes the file's name; whoever has it mapped keeps its memory."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Gives up lock and descriptor. The file stays, to be adopted; the mapping goes with its last user."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # the mapping holds the file open
        os.close(self._fd)


def open_segment(
    folder: str,
    name: str,
    layout: Layout,
    *,
    huge_pages: Progress | None = None,
    numa_node: int = -1,
) -> Segment:
    """The segment that an earlier node of this name left under this boot and in this size, or else a new one: in huge pages
    where somebody is to be told how far that is.

    Others of this name are unlinked. Raises ConfigError: a node of that name runs, or there isn't enough memory.
    """
    pattern = re.compile(rf"moonpool-{os.getuid()}-{re.escape(name)}-[0-9a-f]{{32}}\.segment")
    found: Segment | None = None
    try:
        paths = sorted(path for path in Path(folder).iterdir() if pattern.fullmatch(path.name))
    except OSError as error:
        raise ConfigError(source="settings", field="segment_dir", problem=str(error)) from error
    for path in paths:
        segment = _adopt(path, name, layout) if found is None else None
        found = found or segment
        if found is None or found.path != path:
            logger.info("unlinking %s: not of this boot, size or version", path)
            path.unlink(missing_ok=True)
    if found is not None:
        return found
    return _create(Path(folder), name, layout, huge_pages, numa_node)


def _adopt(path: Path, name: str, layout: Layout) -> Segment | None:
    """The segment in a file, locked, or None where it is no good. Raises ConfigError where another node has it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(source="settings", field="name", problem=f"{path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid():
            raise ConfigError(source="settings", field="name", problem=f"{path} is another user's")
        _lock(fd, name)
        head = Head.read(os.pread(fd, HEAD_BYTES, 0))
        good = (
            head is not None
            and (head.boot_id, head.layout) == (boot_id(), layout)
            and status.st_size == layout.file_bytes
        )
        if head is None or not good:
            os.close(fd)
            return None
        return Segment(path, fd, FileMapping(fd, layout.file_bytes), head, adopted=True)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise


def _create(folder: Path, name: str, layout: Layout, huge_pages: Progress | None, numa_node: int) -> Segment:
    head = Head(secrets.token_bytes(16), boot_id(), layout)
    path = folder / f"moonpool-{os.getuid()}-{name}-{head.segment.hex()}.segment"
    _check_room(folder, layout)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd, name)
        os.ftruncate(fd, layout.file_bytes)
        mapping = FileMapping(fd, layout.file_bytes)
        # Policies come before the memory they are to apply to.
        if numa_node >= 0:
            bind_to_numa_node(mapping, numa_node)
        os.posix_fallocate(fd, 0, HEAD_BYTES)
        if huge_pages is not None:
            for start, size in _pieces(layout, huge_pages):
                mapping.use_huge_pages(fd, start, size)
        os.posix_fallocate(fd, layout.data_offset, layout.capacity_bytes)
        packed, buffer = head.pack(), mapping.buffer
        buffer[len(HEAD_MAGIC) : len(packed)] = packed[len(HEAD_MAGIC) :]
        buffer[: len(HEAD_MAGIC)] = HEAD_MAGIC  # last: a file that was never finished has none
    except BaseException as error:  # whoever ends the process meanwhile, too, must not leave all that memory
        os.close(fd)
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            problem = f"{path}: {error.strerror}"
            raise ConfigError(source="settings", field="size", problem=problem) from error
        raise
    return Segment(path, fd, mapping, head, adopted=False)


def _pieces(layout: Layout, progress: Progress) -> Iterator[tuple[int, int]]:
    """Offset and length of each piece of the data."""
    for done in range(0, layout.capacity_bytes, PIECE_BYTES):
        size = min(PIECE_BYTES, layout.capacity_bytes - done)
        yield layout.data_offset + done, size
        progress(done + size, layout.capacity_bytes)


def _check_room(folder: Path, layout: Layout) -> None:
    status = os.statvfs(folder)
    if status.f_blocks == 0:  # a hugetlbfs without a limit of its own; fallocate will tell
        return
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < layout.capacity_bytes + HEAD_BYTES:
        raise ConfigError(
            source="settings",
            field="size",
            problem=f"{format_size(layout.capacity_bytes)} wanted, {folder} has {format_size(free_bytes)} left",
        )


def _lock(fd: int, name: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            source="settings", field="name", problem=f"a node named {name} is running on this host"
        ) from None


def populate(mapping: FileMapping, start: int, size_bytes: int) -> None:
    """Makes a range of a mapping resident without changing it."""
    if not mapping.populate(start, size_bytes):  # a kernel before 5.14: reading one byte a page does the same
        for offset in range(start, start + size_bytes, mmap.PAGESIZE):
            mapping.buffer[offset]
