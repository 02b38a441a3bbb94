"""Writers on this host, each behind a flock that only its death releases (I4).

A connection that was closed or timed out proves nothing: a stopped process may still copy. The lock obtained proves
that the writer is dead; device copies that it had started get a moment to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass

from moonpool.schemas.errors import InvalidParams, Overloaded

DEVICE_PAUSE_S = 1.0
LOCK_PATH_BYTES_MAX = 160


@dataclass(slots=True, eq=False)
class _Session:
    lock_path: str
    fd: int
    died_s: float | None = None


class Sessions:
    """The lock files of all open sessions. To be used by one thread."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions: dict[int, _Session] = {}
        self._sessions_max = sessions_max

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: int, lock_path: str) -> None:
        """Idempotent. Raises InvalidParams where nobody holds that lock, Overloaded."""
        known = self._sessions.get(session)
        if known is not None:
            if known.lock_path != lock_path:
                raise InvalidParams(field="lock_path", value=lock_path, allowed=known.lock_path)
            return
        if not 0 < session < 1 << 63:
            raise InvalidParams(field="session", value=session, allowed="1 to 2**63 - 1")
        if len(self._sessions) >= self._sessions_max:
            raise Overloaded(what="the node", limit=f"{self._sessions_max} sessions")
        fd = _open_lock(lock_path)
        if _obtain(fd):
            os.close(fd)
            raise InvalidParams(field="lock_path", value=lock_path, allowed="a file that you hold a flock on")
        self._sessions[session] = _Session(lock_path, fd)

    def adopt(self, session: int, lock_path: str) -> bool:
        """Takes over one of an earlier life, also beyond the limit: its writer may be at work. One that has died
        meanwhile ends in `poll`, after the same pause as any. False where the lock file is gone: it was closed."""
        try:
            fd = _open_lock(lock_path)
        except InvalidParams:
            return False
        self._sessions[session] = _Session(lock_path, fd)
        return True

    def poll(self, now_s: float) -> list[int]:
        """Sessions whose writer has been dead for a moment; they are forgotten here."""
        dead = []
        for session, entry in list(self._sessions.items()):
            if entry.died_s is None and _obtain(entry.fd):
                entry.died_s = now_s
            if entry.died_s is not None and now_s - entry.died_s >= DEVICE_PAUSE_S:
                dead.append(session)
                self._close(session)
        return dead

    def close(self) -> None:
        """Forgets all; says nothing about their writers."""
        for session in list(self._sessions):
            os.close(self._sessions.pop(session).fd)

    def _close(self, session: int) -> None:
        entry = self._sessions.pop(session)
        os.close(entry.fd)
        if entry.lock_path.endswith(".lock"):
            with contextlib.suppress(OSError):
                os.unlink(entry.lock_path)


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
    except BlockingIOError:
        return False
    return True
