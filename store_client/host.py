"""What processes of one host share: the kernel boot, the mount that segments lie on, one folder a user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from moonpool.schemas.errors import ConfigError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's id of this boot (36 characters)."""
    return _BOOT_ID.read_text().strip()


def host_id(segment_dir: str) -> str:
    """Equal for processes that can map each other's files of `segment_dir`: boot id, device and inode of the folder.

    Containers of one host agree when the same folder is mounted into them, wherever it is mounted.
    A folder that isn't there gives an id that equals no other host's.
    """
    try:
        status = os.stat(segment_dir)
    except OSError:
        return f"{boot_id()}/none"
    return f"{boot_id()}/{status.st_dev:x}/{status.st_ino:x}"


def user_run_dir(run_dir: str) -> Path:
    """`run_dir`/<uid>, made with mode 0700 where it isn't there. Raises ConfigError where it can't be made or is somebody else's."""
    base = Path(run_dir)
    folder = base / str(os.getuid())
    try:
        if not base.exists():
            base.mkdir(parents=True, exist_ok=True)
            base.chmod(0o1777)  # shared by users like /tmp: sticky, so that none removes another's folder
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        problem = f"{folder} can't be made: {error.strerror}"
        raise ConfigError(source="settings", field="run_dir", problem=problem) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            source="settings", field="run_dir", problem=f"{folder} must be a folder of mode 0700 of this user"
        )
    return folder


def session_lock_path(run_dir: str, session: int) -> Path:
    """The file that a client holds a flock on for as long as it may write into segments of this host."""
    folder = user_run_dir(run_dir) / "sessions"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{session:016x}.lock"
