"""One node of a name in a run dir: it may replace the socket of a dead one. Files of dead nodes are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from moonpool.schemas.errors import ConfigError

SWEPT_MAX = 1000
"""Files of dead nodes that one start looks at."""


@contextlib.contextmanager
def name_lock(folder: Path, name: str) -> Iterator[None]:
    """Holds the name while the context is open. Raises ConfigError where a node has it."""
    path = folder / f"{name}.node"
    while (fd := _lock(path)) is None:
        pass  # somebody removed the file between our opening and our locking it: there is a new one now, or none
    if fd < 0:
        problem = f"a node named {name} is running on this host ({path} is locked)"
        raise ConfigError(source="settings", field="name", problem=problem)
    try:
        _sweep(folder, path)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _lock(path: Path) -> int | None:
    """The descriptor of the locked file; -1 where another process has it; None where it isn't the file at `path` any
    more: its owner unlinked it before giving it up."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    os.close(fd)
    return None


def _sweep(folder: Path, own: Path) -> None:
    """Removes what killed nodes left: nobody can hold their locks. The socket first, while the name is still ours."""
    for path in sorted(folder.glob("*.node"))[:SWEPT_MAX]:
        if path == own:
            continue
        fd = _lock(path)
        if fd is None or fd < 0:
            continue
        path.with_suffix(".sock").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        os.close(fd)
