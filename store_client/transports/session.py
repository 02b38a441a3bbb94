"""A writer's session with the node of its host: a lock that says that it lives, and the list of its open puts."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from moonpool.schemas.errors import ConfigError, MoonpoolError, TransferFailed
from moonpool.schemas.messages import Granted, Message, OpenSession, SessionHeartbeat, SessionOpened
from moonpool.store_client.host import session_lock_path
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.transports.ahead import AheadGrant, AheadGrants

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


class SessionLock:
    """A locked file: the node may take a writer's slots back only when it gets this lock itself (I4)."""

    def __init__(self, run_dir: str, session: int) -> None:
        self.path: Path = session_lock_path(run_dir, session)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _locks.add(self)

    def close(self, *, unlink: bool) -> None:
        """Lets go: nothing of this session may be written any more. A node removes the file once it has the lock;
        `unlink` where none may need it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if unlink:
                self.path.unlink(missing_ok=True)
            os.close(fd)

    def forget_after_fork(self) -> None:
        """A child shares the lock: it must not keep it when its parent dies."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_locks: weakref.WeakSet[SessionLock] = weakref.WeakSet()


def _forget_locks() -> None:
    for lock in list(_locks):
        lock.forget_after_fork()


os.register_at_fork(after_in_child=_forget_locks)


class Session:
    """Opened at the first put and again whenever the node has forgotten it; a thread lists the open puts."""

    def __init__(self, node: ConnectionPool, run_dir: str) -> None:
        self.id = secrets.randbits(62) + 1
        self._node = node
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._file: SessionLock | None = None
        self._removed: list[SessionLock] = []
        self._open: set[int] = set()
        self._newest = 0
        self._ahead = AheadGrants()
        self._told = False
        self._unsure = False
        """Whether a put may still be open for the node, which then needs the lock file to see that we are gone."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, deadline_s: float) -> None:
        """Holds the lock, tells the node. Cheap when it is open already. Raises what the call raises."""
        with self._lock:
            if self._told:
                return
            if self._file is None:
                self._file = self._make_lock()
            # A call that failed may have been heard: the same lock is held until we are done, or the node would find
            # that of the first try free while we write under a second one.
            self._tell(self._file.path, deadline_s)
            self._told = True
            self._thread = threading.Thread(target=self._beat, name="moonpool-session", daemon=True)
            self._thread.start()

    def reopen(self, deadline_s: float) -> None:
        """Tells a node that was started anew. The lock has been held all the while.

        Where its file was removed by somebody, that node could not watch it. Later puts then go under another id and
        lock; the old lock is held on, for what the node may keep open under the old id."""
        with self._lock:
            assert self._file is not None
            if not self._file.path.exists():
                self._removed.append(self._file)
                self.id = secrets.randbits(62) + 1
                self._open.difference_update(self._ahead.expire(math.inf))
                self._file = self._make_lock()
            path = self._file.path
        self._tell(path, deadline_s)

    @contextlib.contextmanager
    def put(self) -> Iterator[int]:
        """A new put id, listed as open while the block runs."""
        put_id = self._new_put()
        try:
            yield put_id
        except BaseException:
            self._unsure = True
            raise
        finally:
            with self._lock:
                self._open.discard(put_id)

    def take_ahead(self, slot_bytes: int, count: int) -> tuple[AheadGrant, int] | None:
        """So many slots of that size which the node has granted ahead, and a put id under which it may grant further ones;
        both are listed as open until `end_ahead`. None where there are no such slots."""
        with self._lock:
            grant = self._ahead.take(slot_bytes, count)
            if grant is None:
                return None
            self._newest += 1
            self._open.add(self._newest)
            return grant, self._newest

    def end_ahead(
        self, taken: tuple[AheadGrant, int], granted: Granted | None, slot_bytes: int, *, sure: bool
    ) -> None:
        """Their put has ended, for the node too where that is `sure`. `granted`: as in `keep_ahead`."""
        grant, put_id = taken
        self._unsure = self._unsure or not sure
        with self._lock:
            self._open.discard(grant.put_id)
            self._keep(grant.session, put_id, granted, slot_bytes)

    def ask_ahead(self) -> int:
        """A put id under which the node may grant slots ahead; listed as open from now on. To be followed by `keep_ahead`."""
        return self._new_put()

    def keep_ahead(self, session: int, put_id: int, granted: Granted | None, slot_bytes: int) -> None:
        """What came of it. `granted`: None where there is nothing, or nothing was heard: then the next heartbeat, which doesn't
        list it, takes it back."""
        with self._lock:
            self._keep(session, put_id, granted, slot_bytes)

    def _keep(self, session: int, put_id: int, granted: Granted | None, slot_bytes: int) -> None:
        good = granted is not None and granted.put_id == put_id and session == self.id
        if not (good and granted and self._ahead.keep(session, granted, slot_bytes, time.monotonic())):
            self._open.discard(put_id)
            self._unsure = self._unsure or granted is not None

    def _new_put(self) -> int:
        with self._lock:
            self._newest += 1
            self._open.add(self._newest)
            return self._newest

    def close(self) -> None:
        """Stops the thread and lets go of the lock."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._file is not None:
                self._file.close(unlink=not (self._unsure or len(self._ahead)))
            for removed in self._removed:
                removed.close(unlink=False)

    def _make_lock(self) -> SessionLock:
        """Raises TransferFailed."""
        try:
            return SessionLock(self._run_dir, self.id)
        except (OSError, ConfigError) as error:
            reason = f"cannot make the session's lock file: {error}"
            raise TransferFailed(peer=self._node.address, reason=reason) from error

    def _tell(self, path: Path, deadline_s: float) -> None:
        request = OpenSession(session=self.id, pid=os.getpid(), lock_path=str(path))
        reply: Message = self._node.call(request, deadline_s)
        if not isinstance(reply, SessionOpened):
            raise TransferFailed(peer=self._node.address, reason=f"{type(reply).__name__} to OpenSession")

    def _beat(self) -> None:
        failing = False
        while not self._stop.wait(HEARTBEAT_S):
            with self._lock:
                expired = self._ahead.expire(time.monotonic())
                self._open.difference_update(expired)
                beat = SessionHeartbeat(self.id, sorted(self._open), self._newest)
            try:
                self._node.call(beat, time.monotonic() + HEARTBEAT_S)
                failing = False
            except MoonpoolError as error:
                self._unsure = self._unsure or bool(expired)  # open for a node that is started again
                if not failing:
                    log.warning("session heartbeat to %s failed: %s", self._node.address, error)
                failing = True
