"""An append-only file of frames, made whole again by a rewrite. Blocking: its caller has a thread for it."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from moonpool.master.store.frames import decode_frames, encode_frame, encode_frames
from moonpool.schemas.errors import StoreFailed

log = logging.getLogger(__name__)

FILE_MODE = 0o600


class LogFile:
    """`size_bytes` grows by append and shrinks by rewrite. One process at a time has it open."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it. Raises StoreFailed (somebody else has it, or it can't be had), CorruptStore."""
        self.path = path
        self._new_path = path.with_name(path.name + ".new")
        self._broken = False
        with ExitStack() as opened:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._lock = _locked(path.with_name(path.name + ".lock"))
                opened.callback(os.close, self._lock)
                self._new_path.unlink(missing_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
                opened.callback(os.close, self._file)
                self.bodies, self.size_bytes = self._read()
            except BlockingIOError:
                raise StoreFailed(store=f"file:{path}", reason="another process has it open") from None
            except OSError as error:
                raise self._failed(error) from None
            opened.pop_all()

    def _read(self) -> tuple[list[bytes], int]:
        data = self.path.read_bytes()
        bodies, size = decode_frames(data, str(self.path))
        if size < len(data):
            log.warning("%s: the last write was cut off, %d bytes are dropped", self.path, len(data) - size)
            os.ftruncate(self._file, size)
        os.fsync(self._file)
        _sync_folder(self.path.parent)
        return bodies, size

    @property
    def broken(self) -> bool:
        """A write failed: only a rewrite makes the file fit for more."""
        return self._broken

    def append(self, body: bytes) -> None:
        """On return it is on the disk. Raises StoreFailed; then it isn't in the file either."""
        frame = encode_frame(body)
        try:
            self._write(self._file, frame, self.size_bytes)
            os.fsync(self._file)
        except OSError as error:
            self._broken = True  # what failed to reach the disk once may be thought clean by the kernel
            self._cut()
            raise self._failed(error) from None
        self.size_bytes += len(frame)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._file, self.size_bytes)
            os.fsync(self._file)
        except OSError as error:
            log.warning("%s: cannot take back a failed write: %s", self.path, error.strerror)

    def rewrite(self, bodies: Iterable[bytes]) -> None:
        """Puts these in place of all that is there, at once. Raises StoreFailed; then all is as before."""
        frames = encode_frames(bodies)
        try:
            fresh = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            try:
                self._write(fresh, frames, 0)
                os.fsync(fresh)
                os.rename(self._new_path, self.path)
            except OSError:
                os.close(fresh)
                self._new_path.unlink(missing_ok=True)
                raise
            os.close(self._file)
            self._file, self.size_bytes = fresh, len(frames)
            _sync_folder(self.path.parent)
        except OSError as error:
            self._broken = True
            raise self._failed(error) from None
        self._broken = False

    @staticmethod
    def _write(file: int, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, at)
            view, at = view[written:], at + written

    def close(self) -> None:
        """Lets others have it."""
        os.close(self._file)
        os.close(self._lock)

    def _failed(self, error: OSError) -> StoreFailed:
        return StoreFailed(store=f"file:{self.path}", reason=error.strerror or str(error))


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _sync_folder(path: Path) -> None:
    """A new name is on the disk only when its folder is."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
