"""Names of nodes: one holder at a time, and no file left by anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from moonpool.schemas.errors import ConfigError
from moonpool.store_client.node.name_lock import name_lock

HOLD = """
import sys, time
from pathlib import Path
from moonpool.store_client.node.name_lock import name_lock
with name_lock(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_name_is_held_once_and_leaves_no_file(tmp_path: Path) -> None:
    with name_lock(tmp_path, "a"), name_lock(tmp_path, "b"):
        with pytest.raises(ConfigError, match="a node named a is running"), name_lock(tmp_path, "a"):
            pass
        assert sorted(os.listdir(tmp_path)) == ["a.node", "b.node"]
    assert os.listdir(tmp_path) == []


def test_files_of_killed_nodes_are_removed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path), "a.b"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (tmp_path / "a.b.sock").touch()
        with name_lock(tmp_path, "c"):
            assert (tmp_path / "a.b.sock").exists(), "of one that lives"
        other.kill()
    with name_lock(tmp_path, "c"):
        assert os.listdir(tmp_path) == ["c.node"]


def test_many_that_want_one_name_get_it_one_at_a_time(tmp_path: Path) -> None:
    held, worst, turns = 0, 0, 0
    count = threading.Lock()

    def want() -> None:
        nonlocal held, worst, turns
        got = 0
        while got < 20:
            try:
                with name_lock(tmp_path, "a"):
                    with count:
                        held, turns = held + 1, turns + 1
                        worst = max(worst, held)
                    got += 1
                    with count:
                        held -= 1
            except ConfigError:
                continue

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (worst, turns) == (1, 80)
    assert os.listdir(tmp_path) == []
