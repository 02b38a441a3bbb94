"""The file store: what was acknowledged is there after any end of the process, and nothing half done ever is."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master.store.base import Delete, DeletePrefix, Put
from moonpool.master.store.file import FileStore
from moonpool.master.store.frames import decode_frames, encode_frames
from moonpool.schemas.errors import CorruptStore, DeadlineExceeded, StoreFailed

T_S = 120.0


async def everything(store: FileStore) -> dict[bytes, bytes]:
    return {record.key: record.value for record in (await store.read(b"", timeout_s=T_S)).records}


async def reopened(path: Path) -> dict[bytes, bytes]:
    store = FileStore(path)
    try:
        store.validate()
        return await everything(store)
    finally:
        await store.close()


async def written(path: Path, count: int = 5) -> None:
    store = FileStore(path)
    for number in range(count):
        await store.commit([Put(b"%d" % number, b"value %d" % number)], timeout_s=T_S)
    await store.close()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond: what a full disk does, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


async def test_all_but_leased_records_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "hard-state"
    store = FileStore(path)
    lease = await store.grant(60, timeout_s=T_S)
    puts = [
        Put(b"a", b"1"),
        Put(b"b/1", b"2"),
        Put(b"b/2", b"3"),
        Put(b"leased", b"", lease),
        Put(b"c", b"4"),
    ]
    await store.commit(puts, timeout_s=T_S)
    await store.commit([Put(b"a", b"5"), DeletePrefix(b"b/"), Put(b"c", b"6", lease)], timeout_s=T_S)
    revision = await store.commit([Put(b"d", b"7"), Delete(b"nothing")], timeout_s=T_S)
    assert revision is not None
    versions = {record.key: record.version for record in (await store.read(b"", timeout_s=T_S)).records}
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = FileStore(path)
    page = await again.read(b"", timeout_s=T_S)
    assert {record.key: record.value for record in page.records} == {b"a": b"5", b"d": b"7"}
    assert all(versions[record.key] == record.version for record in page.records)
    later = await again.commit([Put(b"e", b"")], timeout_s=T_S)
    assert later is not None and later > revision
    await again.close()


async def test_the_file_does_not_grow_with_writes_over_writes(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    store = FileStore(path)
    await store.commit([Put(b"kept", b"for ever")], timeout_s=T_S)
    for number in range(30):
        await store.commit([Put(b"a", bytes([number]) * 200_000)], timeout_s=T_S)
    assert path.stat().st_size < 2_000_000
    await store.close()
    assert await reopened(path) == {b"a": bytes([29]) * 200_000, b"kept": b"for ever"}


async def test_a_write_that_a_crash_cut_off_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    await written(path, 3)
    before = path.read_bytes()
    await written(path, 4)
    whole = path.read_bytes()
    for end in [*range(len(before), len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:end])
        assert await reopened(path) == {b"%d" % number: b"value %d" % number for number in range(3)}
    path.write_bytes(whole[: len(before)] + bytes(len(whole) - len(before)))  # blocks that were never written
    assert len(await reopened(path)) == 3
    await written(path, 4)
    assert len(await reopened(path)) == 4


async def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    await written(path)
    whole = path.read_bytes()
    for at in range(0, len(whole) // 2, 5):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(CorruptStore, match="hard-state is damaged"):
            FileStore(path)
        assert path.read_bytes() == damaged


async def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    path.write_bytes(encode_frames([b"\x93\xa5other\x01\x02"]))
    with pytest.raises(CorruptStore):
        FileStore(path)
    path.write_bytes(b"x" * 6_000_000)
    with pytest.raises(CorruptStore):
        FileStore(path)
    with pytest.raises(StoreFailed):
        FileStore(tmp_path)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=60))
def test_frames_come_back_and_nothing_crashes_their_reader(bodies: list[bytes], tail: bytes) -> None:
    data = encode_frames(bodies)
    assert decode_frames(data, "a file") == (bodies, len(data))
    assert decode_frames(data + tail, "a file") == (bodies, len(data))


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    store = FileStore(path)
    with pytest.raises(StoreFailed, match="another process"):
        FileStore(path)
    await store.close()
    await written(path, 1)


async def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    store = FileStore(path)
    await store.commit([Put(b"a", b"1")], timeout_s=T_S)
    with file_size_limit(path.stat().st_size + 60):
        for _ in range(3):
            with pytest.raises(StoreFailed, match="nothing was recorded"):
                await store.commit([Put(b"big", bytes(1000))], timeout_s=T_S)
        assert await everything(store) == {b"a": b"1"}
    with file_size_limit(10), pytest.raises(StoreFailed):
        await store.commit([Put(b"b", b"2")], timeout_s=T_S)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hard-state", "hard-state.lock"]
    await store.commit([Put(b"b", b"2")], timeout_s=T_S)
    await store.close()
    assert await reopened(path) == {b"a": b"1", b"b": b"2"}


async def test_the_loop_is_not_blocked_and_late_writes_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    store = FileStore(path)
    with pytest.raises(DeadlineExceeded):
        await store.commit([Put(b"late", b"1")], timeout_s=0)
    cut_off = asyncio.ensure_future(store.commit([Put(b"cancelled", b"1")], timeout_s=T_S))
    await asyncio.sleep(0)
    cut_off.cancel()
    race = [store.commit([Put(b"%d" % number, b"x")], timeout_s=T_S) for number in range(20)]
    revisions = await asyncio.gather(*race)
    assert len(set(revisions)) == 20
    await store.close()
    assert len(await reopened(path)) == 22


KILLED = """
import asyncio, sys
from pathlib import Path
from moonpool.master.store.base import Put
from moonpool.master.store.file import FileStore

async def main():
    store = FileStore(Path(sys.argv[1]))
    number = len((await store.read(b"", timeout_s=9)).records)
    while True:
        await store.commit([Put(b"%08d" % number, b"x" * 100)], timeout_s=9)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def written_until_killed(path: Path, acknowledged: int) -> int:
    """The last number that a writer said it has written."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(acknowledged)]
        writer.kill()
        said += writer.stdout.read().splitlines()
    return int(said[-1])


async def test_what_was_acknowledged_survives_kill(tmp_path: Path) -> None:
    path = tmp_path / "hard-state"
    for acknowledged in (3, 11):
        last = written_until_killed(path, acknowledged)
        found = sorted(await reopened(path))
        assert found[: last + 1] == [b"%08d" % number for number in range(last + 1)]
        assert len(found) <= last + 2
