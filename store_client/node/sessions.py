"""Writers on this host, each behind a flock that only its death releases (I4).

A connection that was closed or timed out proves nothing: a stopped process may still copy. The lock obtained proves
that the writer is dead; device copies that it had started get a moment to end.

Nothing less proves it, also to a node that adopts the segment of one that was killed. The lock must be obtained on the
very inode that the session was opened with: a path that is gone, or leads to another file, may have been cleaned up
under a live writer, which still holds its lock on the unlinked inode. (While that one lives no other file of its device
has its number.) Running out of descriptors says nothing either. Nor does a pid that is gone: it may be one of another
container. A session with open grants whose file can't be opened is kept, and its slots are nobody else's until its
writer ends its puts, the file can be opened after all, or the segment is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from dataclasses import dataclass

from moonpool.schemas.errors import InvalidParams, Overloaded
from moonpool.store_client.node.annex import SessionRecord

logger = logging.getLogger(__name__)

DEVICE_PAUSE_S = 1.0
LOCK_PATH_BYTES_MAX = 160


@dataclass(slots=True, eq=False)
class _Session:
    record: SessionRecord
    fd: int | None
    """None: adopted, and the file could not be opened so far."""
    died_s: float | None = None


class Sessions:
    """The lock files of all open sessions. To be used by one thread."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions: dict[int, _Session] = {}
        self._sessions_max = sessions_max

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: int, lock_path: str) -> SessionRecord:
        """Idempotent. Raises InvalidParams where nobody holds that lock, Overloaded."""
        known = self._sessions.get(session)
        if known is not None:
            if known.record.lock_path != lock_path:
                raise InvalidParams(field="lock_path", value=lock_path, allowed=known.record.lock_path)
            return known.record
        if not 0 < session < 1 << 63:
            raise InvalidParams(field="session", value=session, allowed="1 to 2**63 - 1")
        if len(self._sessions) >= self._sessions_max:
            raise Overloaded(what="the node", limit=f"{self._sessions_max} sessions")
        fd = _open_lock(lock_path)
        if _obtain(fd):
            os.close(fd)
            raise InvalidParams(field="lock_path", value=lock_path, allowed="a file that you hold a flock on")
        status = os.fstat(fd)
        record = SessionRecord(session, lock_path, status.st_dev, status.st_ino)
        self._sessions[session] = _Session(record, fd)
        return record

    def adopt(self, record: SessionRecord, writing: bool) -> bool:
        """Takes over one of an earlier life, also beyond the limit: its writer may be at work. One that has died
        meanwhile ends in `poll`, after the same pause as any. `writing`: it has open grants. False where it has none
        and can't be watched: there is nothing that it could still write to."""
        fd = _open_again(record)
        if fd is None and not writing:
            return False
        if fd is None:
            logger.warning(
                "session %x keeps its open slots: its lock file %s can't be opened, so nobody can tell whether its "
                "writer lives",
                record.session,
                record.lock_path,
            )
        self._sessions[record.session] = _Session(record, fd)
        return True

    def poll(self, now_s: float) -> list[int]:
        """Sessions whose writer has been dead for a moment; they are forgotten here."""
        dead = []
        for session, entry in list(self._sessions.items()):
            if entry.fd is None:
                entry.fd = _open_again(entry.record)
            if entry.died_s is None and entry.fd is not None and _obtain(entry.fd):
                entry.died_s = now_s
            if entry.died_s is not None and now_s - entry.died_s >= DEVICE_PAUSE_S:
                dead.append(session)
                self._close(session)
        return dead

    def close(self) -> None:
        """Forgets all; says nothing about their writers."""
        for entry in self._sessions.values():
            if entry.fd is not None:
                os.close(entry.fd)
        self._sessions.clear()

    def _close(self, session: int) -> None:
        entry = self._sessions.pop(session)
        if entry.fd is not None:
            os.close(entry.fd)
        if entry.record.lock_path.endswith(".lock"):
            with contextlib.suppress(OSError):
                os.unlink(entry.record.lock_path)


def _open_again(record: SessionRecord) -> int | None:
    """A descriptor of the file that the session was opened with; None where that one can't be had."""
    try:
        fd = _open_lock(record.lock_path)
    except InvalidParams:
        return None
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (record.device, record.inode):
        os.close(fd)
        return None
    return fd


def _open_lock(path: str) -> int:
    """A descriptor of a lock file of this user. Raises InvalidParams."""
    if not 0 < len(path.encode()) <= LOCK_PATH_BYTES_MAX or not os.path.isabs(path):
        allowed = f"an absolute path of at most {LOCK_PATH_BYTES_MAX} bytes"
        raise InvalidParams(field="lock_path", value=path, allowed=allowed)
    allowed = "a regular file of this user"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidParams(field="lock_path", value=path, allowed=f"{allowed} ({error.strerror})") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(fd)
        raise InvalidParams(field="lock_path", value=path, allowed=allowed)
    return fd


def _obtain(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or the file system can't say
        return False
    return True
