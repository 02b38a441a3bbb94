"""What a store can do about failures: both are put through the same ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.freezing import freeze, thaw
from support.guarded import TOKENS, write_tokens
from support.mooncake_pools import Memory, Pool
from support.processes import MasterProcess
from support.waiting import at_most, wait_until

import moonpool.store_client.mooncake as moonpool_module
from moonpool.schemas.errors import UsedAfterFork

VALUE_BYTES = 900_000
OWNER = Path(__file__).parents[1] / "support" / "mooncake_owner.py"
DEADLINE_S = 2.0


def timed(call: Any, *arguments: Any) -> tuple[Any, float]:
    """(answer, seconds)."""
    start_s = time.monotonic()
    answer = call(*arguments)
    return answer, time.monotonic() - start_s


# ---------------------------------------------------------------- the master


def test_a_killed_master(own_pool: Pool) -> None:
    store = own_pool.store()
    assert store.put("key", b"value") == 0
    own_pool.master.kill()
    assert store.health_check() in own_pool.allowed("health", mooncake=(0, 2), moonpool=2)
    answer, took_s = timed(store.batch_is_exist, ["key", "other"])
    assert [code < 0 for code in answer] == [True, True]
    assert took_s < at_most(0.5) or not own_pool.ours
    refused = store.put("other", b"value")
    assert refused == own_pool.expected("unreachable-put", mooncake=-900, moonpool=-800)
    assert store.get("key") == b""


def test_a_frozen_master(own_pool: Pool) -> None:
    store = own_pool.store(timeout_s=DEADLINE_S)
    wait_until(lambda: store.put("key", b"value") == 0)
    own_pool.master.freeze()
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(store.is_exist("key")))
    start_s = time.monotonic()
    asking.start()
    asking.join(at_most(DEADLINE_S))
    waits = own_pool.allowed("frozen-master", mooncake=(True, False), moonpool=False)
    try:
        assert asking.is_alive() in waits  # Mooncake's goes on for 30 s
        if own_pool.ours:
            assert time.monotonic() - start_s > DEADLINE_S / 2
            assert answers[0] < 0
            # The breaker answers at once; a second after each failure one call asks the master again.
            answers_s = [timed(store.batch_is_exist, ["key"] * 1000) for _ in range(3)]
            assert all(code < 0 for answer, _ in answers_s for code in answer)
            assert min(took_s for _, took_s in answers_s) < DEADLINE_S / 2
            assert store.put("other", b"value") < 0
            assert store.get("key") == b""
            assert store.health_check() == 2
    finally:
        own_pool.master.thaw()
    asking.join()
    if own_pool.ours:  # Mooncake's forgets an owner that it hasn't heard for 10 s
        wait_until(lambda: store.is_exist("key") == 1)
        wait_until(lambda: store.get("key") == b"value")
    wait_until(lambda: store.health_check() == 0)


# ---------------------------------------------------------------- space


def fill(store: Any, count: int) -> list[int]:
    return [store.put(f"filler-{i}", bytes([i % 251]) * VALUE_BYTES) for i in range(count)]


def test_a_full_pool_takes_more(own_pool: Pool) -> None:
    store = own_pool.store()
    value = Memory(VALUE_BYTES)
    codes: list[int] = []
    for first in range(0, 160, 40):  # in batches: nobody has time to make room meanwhile
        names = [f"filler-{i}" for i in range(first, first + 40)]
        codes += store.batch_put_from(names, [value.address] * 40, [VALUE_BYTES] * 40)
    refused = sum(code != 0 for code in codes)
    assert (refused > 0) in own_pool.allowed("full-pool", mooncake=(True, False), moonpool=False)
    assert {code for code in codes if code} <= {-200}
    there = store.batch_is_exist([f"filler-{i}" for i in range(160)])
    assert 16 < sum(there) < 160
    for i, code in enumerate(there):
        if code:
            assert store.get(f"filler-{i}") in (b"", value.at(0, VALUE_BYTES))
    if own_pool.ours:
        assert there[-1] == 1  # the oldest went, not the youngest


def test_leases_of_exist_yield_to_a_put(own_pool: Pool) -> None:
    store = own_pool.store()
    fill(store, 50)
    names = [f"filler-{i}" for i in range(50)]
    assert sum(store.batch_is_exist(names)) > 40
    codes = [store.put(f"more-{i}", bytes(VALUE_BYTES)) for i in range(40)]
    assert any(codes) in own_pool.allowed("full-pool", mooncake=(True, False), moonpool=False)


def test_pinned_objects_stay(own_pool: Pool) -> None:
    store = own_pool.store()
    pinned = own_pool.config(with_hard_pin=True)
    names = [f"pinned-{i}" for i in range(10)]
    assert [store.put(name, bytes([9]) * VALUE_BYTES, pinned) for name in names] == [0] * 10
    fill(store, 150)
    assert store.batch_is_exist(names) == [1] * 10
    assert store.get(names[0]) == bytes([9]) * VALUE_BYTES


# ---------------------------------------------------------------- owners


@contextmanager
def owner_of(pool: Pool, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a segment with so many objects."""
    process = subprocess.Popen(
        [sys.executable, str(OWNER), pool.kind, pool.master.address, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_killed_owner(own_pool: Pool) -> None:
    with owner_of(own_pool, 20) as owner:
        store = own_pool.store(0)
        names = [f"owned-{i}" for i in range(20)]
        assert store.batch_is_exist(names) == [1] * 20
        assert store.get(names[7]) == bytes([7]) * 10_000
        owner.kill()
        owner.wait()
        start_s = time.monotonic()
        if own_pool.ours:
            wait_until(lambda: store.batch_is_exist(names) == [0] * 20)  # a miss, which an engine computes
        else:  # hits that can't be read, for some 10 s
            assert store.batch_is_exist(names) in ([1] * 20, [0] * 20)
        assert store.get_batch(names) == [b""] * 20
        assert time.monotonic() - start_s < at_most(10) or not own_pool.ours
        assert store.is_exist("another") == 0


def test_a_frozen_owner_costs_one_deadline() -> None:
    """Only ours: a copy from a frozen owner costs Mooncake 30 s."""
    with Pool("moonpool") as pool:
        others = nodes_of_this_process()
        store = pool.store(timeout_s=DEADLINE_S)
        wait_until(lambda: store.put("key", b"value" * 1000) == 0)
        (pid,) = set(nodes_of_this_process()) - set(others)
        freeze(pid)
        try:
            code, took_s = timed(store.put, "other", b"value" * 1000)
            assert code < 0
            assert took_s < at_most(2 * DEADLINE_S)
            assert store.put("other", b"value" * 1000) < 0
        finally:
            thaw(pid)
        wait_until(lambda: store.put("another", b"value") == 0)
        wait_until(lambda: store.get("another") == b"value")
        assert store.get("key") in (b"", b"value" * 1000)


def nodes_of_this_process() -> list[int]:
    """Process ids of the nodes that its stores have started."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    return [pid for pid in pids if b"store_client.node" in Path(f"/proc/{pid}/cmdline").read_bytes()]


# ---------------------------------------------------------------- forks


def test_use_after_a_fork_is_a_clear_error() -> None:
    """Only ours: Mooncake's library hangs or crashes there. (difference: after-fork)"""
    with Pool("moonpool") as pool:
        store = pool.store(0)
        assert store.put("key", b"value") == -200  # no segment yet
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (
                lambda: store.get("key"),
                lambda: store.is_exist("key"),
                lambda: store.put("k", b"v"),
                lambda: store.health_check(),
                lambda: store.get_replica_desc("key"),
            ):
                try:
                    call()
                except UsedAfterFork as error:
                    said.append(str(error))
            os.write(writer, "\n".join(said).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read().splitlines()
        assert os.waitpid(child, 0)[1] == 0
        assert len(said) == 5
        assert all("make a new one after a fork" in sentence for sentence in said)
        assert store.is_exist("key") == 0  # the parent's goes on


def test_a_master_that_refuses_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ours: Mooncake's master lets everybody in."""
    tokens = write_tokens(tmp_path / "tokens.json")
    with MasterProcess([f"--tokens-file={tokens}"]) as master:
        for token, tenant, opened in (("nobody's", "default", -1), (TOKENS["red"], "blue", 0)):
            monkeypatch.setenv("MOONPOOL_TOKEN", token)
            store = moonpool_module.MooncakeDistributedStore()
            code, took_s = timed(
                store.setup, "h", "P2PHANDSHAKE", 0, 0, "tcp", "", master.address, None, False, "", tenant
            )
            assert (code, took_s < at_most(2)) == (opened, True)
            assert store.is_exist("key") < 0
            assert store.get("key") == b""
            assert store.get_replica_desc("key") == []
            store.close()


def test_setup_without_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ours: Mooncake's takes 90 s."""
    monkeypatch.setattr("moonpool.store_client.mooncake.lifecycle.SETUP_TIMEOUT_S", 0.5)
    store = moonpool_module.MooncakeDistributedStore()
    answer, took_s = timed(store.setup, "127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1")
    assert answer == -1
    assert took_s < at_most(3)
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "not an address") == -600
