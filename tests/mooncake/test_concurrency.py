"""Many threads on one store, many processes on one pool."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from support.mooncake_pools import Pool, patience

THREADS = 16
PROCESSES = 8
WORKER = Path(__file__).parents[1] / "support" / "mooncake_worker.py"


def test_sixteen_threads_on_one_store(pool: Pool, store: Any, key: str) -> None:
    wrong: list[str] = []
    being_written = pool.expected("being-written", mooncake=-703, moonpool=-704)

    def work(thread: int) -> None:
        memory = np.empty(4096, dtype=np.uint8)
        for i in range(25):
            mine, common = f"{key}-{thread}-{i}", f"{key}-common-{i}"
            value = bytes([thread + 1]) * (100 + i)
            if store.put(mine, value) or store.put(common, bytes([i]) * 50):
                wrong.append(f"put {mine}")
            if store.get(mine) != value or store.batch_is_exist([mine, f"{mine}-no"]) != [1, 0]:
                wrong.append(f"get {mine}")
            size = store.get_into(common, memory.ctypes.data, 4096)
            if size != being_written and (size != 50 or (memory[:50] != i).any()):
                wrong.append(f"get_into {common}: {size}")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
    assert store.batch_is_exist([f"{key}-common-{i}" for i in range(25)]) == [1] * 25


def test_eight_processes(pool: Pool, store: Any, key: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), pool.kind, pool.master.address, key, str(number)],
            stdout=subprocess.PIPE,
            text=True,
            # Eight starts of Python at once may hold a call up for longer than its deadline.
            env={**os.environ, **patience(60)},
        )
        for number in range(PROCESSES)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, said
    for number in range(PROCESSES):
        assert store.get(f"{key}-{number}-0") == bytes([number + 1]) * 1000
    assert store.is_exist(f"{key}-common") == 1
