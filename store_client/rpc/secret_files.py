"""Files with secrets: read only where nobody else can read them, and looked at again for rotation."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from moonpool.schemas.errors import ConfigError

LOOK_EVERY_S = 1.0
"""How often a file is looked at: a rotation is in force that long after it."""


def read_private(path: Path, bytes_max: int) -> bytes:
    """The file's bytes. Raises ConfigError where it can't be read, is larger, or others can read it."""
    check_private(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(bytes_max + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(raw) > bytes_max:
        raise ConfigError(source=str(path), field="file", problem=f"is over {bytes_max} bytes")
    return raw


def check_private(path: Path) -> None:
    """Raises ConfigError where the file isn't there or others can read it.

    A file of root may be readable by the group of a process that isn't root: so Kubernetes mounts secrets.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    for_group = found.st_uid == 0 and os.geteuid() != 0
    if stat.S_IMODE(found.st_mode) & (0o037 if for_group else 0o077):
        problem = f"has mode {stat.S_IMODE(found.st_mode):04o}, so others can read it; chmod 600 it"
        raise ConfigError(source=str(path), field="file", problem=problem)


def state_of(path: Path) -> tuple[int, int, int, int] | None:
    """What changes when the file does. None: it isn't there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(source=str(path), field="file", problem=f"can't be read: {error.strerror}")
