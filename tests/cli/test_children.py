"""Children end with their parent, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.waiting import wait_until

from moonpool.store_client.children import start_child, stop_child

PARENT = """
import sys, time
from moonpool.store_client.children import start_child
child = start_child([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether the process has ended: its entry is away, or only waits to be collected by whoever inherited it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    wait_until(lambda: gone(child))


def test_a_child_has_a_process_group_of_its_own() -> None:
    child = start_child([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert os.getpgid(child.pid) == child.pid
    finally:
        assert stop_child(child) == -signal.SIGTERM
        assert stop_child(child) == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    child = start_child([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        assert stop_child(child, grace_s=0.1) == -signal.SIGKILL
