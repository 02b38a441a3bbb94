"""What every MetadataStore promises, shown on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.etcd_server import EtcdServer, open_etcd

from moonpool.master.store.base import Changes, Condition, Delete, DeletePrefix, MetadataStore, Put
from moonpool.master.store.file import FileStore
from moonpool.master.store.limits import COMMIT_BYTES_MAX, OPS_MAX
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.errors import Closed, Compacted, InvalidParams, LeaseLost, TooLarge

T_S = 120.0
"""A deadline that a loaded machine keeps."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["memory", "file", pytest.param("etcd", marks=pytest.mark.etcd)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made: MetadataStore
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "file":
        made = FileStore(tmp_path / "hard-state")
    else:
        server: EtcdServer = request.getfixturevalue("etcd")
        made = open_etcd(server, f"/moonpool/{tmp_path.name}/".encode())
    yield made
    await made.close()


async def put(store: MetadataStore, **values: bytes) -> int:
    revision = await store.commit([Put(key.encode(), value) for key, value in values.items()], timeout_s=T_S)
    assert revision is not None
    return revision


async def everything(store: MetadataStore, prefix: bytes = b"") -> dict[bytes, bytes]:
    page = await store.read(prefix, timeout_s=T_S)
    assert not page.more
    return {record.key: record.value for record in page.records}


async def take(changes: AsyncIterator[Changes], count: int) -> list[Changes]:
    async with asyncio.timeout(T_S):
        return [await anext(changes) for _ in range(count)]


async def test_what_is_put_is_read_in_key_order(store: MetadataStore) -> None:
    revision = await put(store, b=b"2", a=b"1", c=b"")
    page = await store.read(b"", timeout_s=T_S)
    assert [(one.key, one.value, one.version, one.lease) for one in page.records] == [
        (b"a", b"1", revision, 0),
        (b"b", b"2", revision, 0),
        (b"c", b"", revision, 0),
    ]
    assert page.revision == revision
    assert not page.more


async def test_a_put_over_another_raises_its_version_alone(store: MetadataStore) -> None:
    first = await put(store, a=b"1", b=b"1")
    second = await put(store, a=b"2")
    assert second > first
    page = await store.read(b"", timeout_s=T_S)
    assert [(one.value, one.version) for one in page.records] == [(b"2", second), (b"1", first)]


async def test_reads_come_in_pages(store: MetadataStore) -> None:
    keys = [b"p/%03d" % number for number in range(25)]
    await store.commit([Put(key, b"x") for key in keys], timeout_s=T_S)
    await put(store, o=b"before", q=b"after")
    found: list[bytes] = []
    after, pages = b"", 0
    while True:
        page = await store.read(b"p/", after=after, records_max=10, timeout_s=T_S)
        found += [record.key for record in page.records]
        pages += 1
        if not page.more:
            break
        after = found[-1]
    assert found == keys
    assert pages == 3


async def test_a_prefix_of_all_ones_has_an_end(store: MetadataStore) -> None:
    await store.commit(
        [Put(b"\xff\xff", b"1"), Put(b"\xff\xff\x00", b"2"), Put(b"\xfe", b"3")], timeout_s=T_S
    )
    assert await everything(store, b"\xff\xff") == {b"\xff\xff": b"1", b"\xff\xff\x00": b"2"}


async def test_deletes(store: MetadataStore) -> None:
    await put(store, a=b"1", ab=b"2", b=b"3", c=b"4")
    await store.commit([DeletePrefix(b"a"), Delete(b"c"), Delete(b"never there")], timeout_s=T_S)
    assert await everything(store) == {b"b": b"3"}


async def test_conditions(store: MetadataStore) -> None:
    version = await put(store, a=b"1")
    assert await store.commit([Put(b"x", b"")], conditions=[Condition(b"a")], timeout_s=T_S) is None
    assert (
        await store.commit([Put(b"x", b"")], conditions=[Condition(b"a", value=b"2")], timeout_s=T_S) is None
    )
    assert (
        await store.commit([Put(b"x", b"")], conditions=[Condition(b"b", value=b"")], timeout_s=T_S) is None
    )
    assert await everything(store) == {b"a": b"1"}
    held = [Condition(b"a", version), Condition(b"b"), Condition(b"a", value=b"1")]
    assert await store.commit([Put(b"b", b"2")], conditions=held, timeout_s=T_S) is not None
    assert await store.commit([Put(b"c", b"3")], conditions=held, timeout_s=T_S) is None
    assert await everything(store) == {b"a": b"1", b"b": b"2"}


async def test_one_of_many_racing_commits_wins(store: MetadataStore) -> None:
    race = [
        store.commit([Put(b"owner", b"%d" % number)], conditions=[Condition(b"owner")], timeout_s=T_S)
        for number in range(8)
    ]
    assert sum(revision is not None for revision in await asyncio.gather(*race)) == 1


async def test_what_is_too_much_is_refused_whole(store: MetadataStore) -> None:
    too_many = [Put(b"%d" % number, b"") for number in range(OPS_MAX + 1)]
    for writes in (
        too_many,
        [Put(b"a", b""), Delete(b"a")],
        [Put(b"ab", b""), DeletePrefix(b"a")],
        [Put(b"", b"")],
    ):
        with pytest.raises(InvalidParams):
            await store.commit(writes, timeout_s=T_S)
    with pytest.raises(TooLarge):
        await store.commit([Put(b"a", bytes(COMMIT_BYTES_MAX))], timeout_s=T_S)
    with pytest.raises(InvalidParams):
        await store.read(b"", records_max=0, timeout_s=T_S)
    with pytest.raises(InvalidParams):
        await store.grant(0, timeout_s=T_S)
    assert await everything(store) == {}
    assert await store.commit(too_many[:OPS_MAX], timeout_s=T_S) is not None


async def test_a_leased_record_goes_with_its_lease(store: MetadataStore) -> None:
    lease = await store.grant(60, timeout_s=T_S)
    revision = await store.commit([Put(b"a", b"1", lease), Put(b"b", b"2", lease)], timeout_s=T_S)
    assert revision is not None
    await put(store, b=b"stays")  # a put without a lease takes the record out of it
    page = await store.read(b"a", timeout_s=T_S)
    assert page.records[0].lease == lease
    changes = store.watch(b"", after_revision=revision + 1)
    await store.revoke(lease, timeout_s=T_S)
    (gone,) = await take(changes, 1)
    assert gone.deletes == (b"a",)
    assert await everything(store) == {b"b": b"stays"}
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease, timeout_s=T_S)
    with pytest.raises(LeaseLost):
        await store.commit([Put(b"c", b"", lease)], timeout_s=T_S)
    await store.revoke(lease, timeout_s=T_S)
    assert await everything(store) == {b"b": b"stays"}


async def test_a_lease_that_nobody_keeps_alive_ends(store: MetadataStore) -> None:
    lease, kept = await store.grant(1, timeout_s=T_S), await store.grant(60, timeout_s=T_S)
    assert await store.keep_alive(kept, timeout_s=T_S) == 60
    revision = await store.commit([Put(b"a", b"1", lease), Put(b"b", b"2", kept)], timeout_s=T_S)
    assert revision is not None
    (gone,) = await take(store.watch(b"", after_revision=revision), 1)
    assert gone.deletes == (b"a",)
    assert await everything(store) == {b"b": b"2"}


async def test_a_watch_sees_every_transaction_of_its_prefix_in_order(store: MetadataStore) -> None:
    start = await put(store, z=b"before")
    changes = store.watch(b"p/", after_revision=start)
    first = await store.commit([Put(b"p/a", b"1"), Put(b"q", b"no")], timeout_s=T_S)
    await put(store, q=b"not mine")
    (seen,) = await take(changes, 1)
    assert (seen.revision, [one.key for one in seen.puts], seen.deletes) == (first, [b"p/a"], ())
    waiting = asyncio.ensure_future(take(changes, 3))
    second = await store.commit([Put(b"p/a", b"2"), Put(b"p/b", b"3")], timeout_s=T_S)
    third = await store.commit([DeletePrefix(b"p/")], timeout_s=T_S)
    fourth = await store.commit([Put(b"p/a", b"4")], timeout_s=T_S)
    later = await waiting
    assert [change.revision for change in later] == [second, third, fourth]
    assert [sorted(one.value for one in change.puts) for change in later] == [[b"2", b"3"], [], [b"4"]]
    assert sorted(later[1].deletes) == [b"p/a", b"p/b"]
    again = await take(store.watch(b"p/", after_revision=start), 4)
    assert [change.revision for change in again] == [first, second, third, fourth]


async def test_history_that_is_gone_says_so_and_records_stay(store: MetadataStore) -> None:
    start = await put(store, a=b"1")
    await put(store, a=b"2")
    last = await put(store, a=b"3")
    await store.compact(last, timeout_s=T_S)
    with pytest.raises(Compacted):
        await take(store.watch(b"", after_revision=start), 1)
    assert await everything(store) == {b"a": b"3"}
    changes = store.watch(b"", after_revision=last)
    later = await put(store, a=b"4")
    assert [change.revision for change in await take(changes, 1)] == [later]


async def test_a_closed_store_says_so(store: MetadataStore) -> None:
    revision = await put(store, a=b"1")
    waiting = asyncio.ensure_future(take(store.watch(b"", after_revision=revision), 1))
    await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await store.read(b"", timeout_s=T_S)
    await store.close()
