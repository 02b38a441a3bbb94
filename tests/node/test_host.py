"""The folder of sockets and locks: made for this user, or refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moonpool.schemas.errors import ConfigError
from moonpool.store_client.host import user_run_dir


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = user_run_dir(str(tmp_path / "run"))
    assert folder == tmp_path / "run" / str(os.getuid())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert user_run_dir(str(tmp_path / "run")) == folder


def test_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=f"run_dir: {file}/{os.getuid()} can't be made: Not a directory"):
        user_run_dir(str(file))


def test_one_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / str(os.getuid())).mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="must be a folder of mode 0700 of this user"):
        user_run_dir(str(tmp_path))
