"""What only etcd can do to us: die, freeze, forget tokens, ask for certificates, answer too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme
from support.etcd_server import PASSWORD, EtcdServer, open_etcd
from support.waiting import at_most

from moonpool.master.store.base import Changes, Condition, Put
from moonpool.master.store.etcd import EtcdStore
from moonpool.master.store.etcd_link import EtcdAccess
from moonpool.schemas.errors import Compacted, DeadlineExceeded, RpcFailed, StoreFailed

pytestmark = pytest.mark.etcd
T_S = 120.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


async def take(changes: AsyncIterator[Changes], count: int) -> list[Changes]:
    async with asyncio.timeout(T_S):
        return [await anext(changes) for _ in range(count)]


async def until_put(store: EtcdStore, key: bytes) -> int:
    """Puts it as soon as the server is back."""
    end_s = time.monotonic() + T_S
    while True:
        try:
            revision = await store.commit([Put(key, b"")], timeout_s=20)
            assert revision is not None
            return revision
        except (RpcFailed, DeadlineExceeded):
            assert time.monotonic() < end_s


async def test_a_watch_outlives_its_server_and_misses_nothing(etcd: EtcdServer) -> None:
    store, other = open_etcd(etcd), open_etcd(etcd)
    start = await store.commit([Put(b"before", b"")], timeout_s=T_S)
    assert start is not None
    changes = store.watch(b"", after_revision=start)
    following = asyncio.ensure_future(take(changes, 1))
    await until_put(other, b"first")
    assert [one.key for one in (await following)[0].puts] == [b"first"]
    following = asyncio.ensure_future(take(changes, 301))
    etcd.kill()
    with pytest.raises((RpcFailed, DeadlineExceeded)):
        await other.commit([Put(b"while it is away", b"")], timeout_s=0.5)
    etcd.start()
    for number in range(300):
        await until_put(other, b"%d" % number)
    last = await until_put(other, b"last")
    seen = await following
    assert [one.puts[0].key for one in seen] == [b"%d" % number for number in range(300)] + [b"last"]
    assert seen[-1].revision == last
    await store.close()
    await other.close()


async def test_history_that_went_while_the_server_was_away_is_missed(etcd: EtcdServer) -> None:
    store, other = open_etcd(etcd), open_etcd(etcd)
    start = await until_put(store, b"a")
    changes = store.watch(b"", after_revision=start)
    following = asyncio.ensure_future(take(changes, 2))
    await until_put(other, b"b")
    etcd.kill()
    await other.close()
    etcd.start()
    other = open_etcd(etcd, b"/other/")
    last = await until_put(other, b"c")
    await other.compact(last, timeout_s=T_S)
    late = store.watch(b"", after_revision=start)
    with pytest.raises(Compacted):
        await take(late, 2)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await store.close()
    await other.close()


async def test_a_frozen_server_costs_the_deadline(etcd: EtcdServer) -> None:
    store = open_etcd(etcd)
    await until_put(store, b"a")
    etcd.freeze()
    began_s = time.monotonic()
    with pytest.raises((DeadlineExceeded, RpcFailed)):
        await store.read(b"", timeout_s=0.5)
    with pytest.raises((DeadlineExceeded, RpcFailed)):
        await store.commit([Put(b"b", b"")], timeout_s=0.5)
    assert time.monotonic() - began_s < at_most(3)
    etcd.thaw()
    await until_put(store, b"c")
    await store.close()


async def test_the_next_endpoint_is_asked(etcd: EtcdServer, tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "frozen") as frozen:
        store = EtcdStore(EtcdAccess(("127.0.0.1:1", frozen.endpoint, etcd.endpoint)), b"/moonpool/test/")
        frozen.freeze()
        assert (await store.read(b"", timeout_s=60)).records == ()
        revision = await store.commit([Put(b"a", b"1")], conditions=[Condition(b"a")], timeout_s=60)
        assert revision is not None
        await store.close()


async def test_pages_fit_whatever_the_records_hold(etcd: EtcdServer) -> None:
    store = open_etcd(etcd)
    for number in range(24):
        await store.commit([Put(b"%02d" % number, bytes(1_000_000))], timeout_s=T_S)
    found: list[bytes] = []
    more, pages = True, 0
    while more:
        page = await store.read(b"", after=found[-1] if found else b"", timeout_s=T_S)
        found += [record.key for record in page.records]
        more, pages = page.more, pages + 1
    assert found == [b"%02d" % number for number in range(24)]
    assert pages > 1
    await store.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca")
    mine.cert_chain_pems[0].write_to_path(folder / "cert")
    mine.private_key_pem.write_to_path(folder / "key")
    return folder / "ca", folder / "cert", folder / "key"


async def test_certificates(tmp_path: Path, certificates: tuple[Path, Path, Path]) -> None:
    ca, cert, key = map(str, certificates)
    with EtcdServer(tmp_path / "etcd", tls=certificates) as etcd:
        store = open_etcd(etcd, ca=ca, cert=cert, key=key)
        revision = await until_put(store, b"a")
        following = asyncio.ensure_future(take(store.watch(b"", after_revision=revision), 1))
        await until_put(store, b"b")
        await following
        for access in ({"ca": ca}, {}):
            refused = open_etcd(etcd, **access)
            with pytest.raises((RpcFailed, DeadlineExceeded)):
                await refused.read(b"", timeout_s=1)
            await refused.close()
        await store.close()


async def test_users_and_tokens_that_end(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    with EtcdServer(tmp_path / "etcd", flags=["--auth-token-ttl", "1"]) as etcd:
        etcd.enable_auth()
        store = open_etcd(etcd, user="moonpool", password_file=str(password))
        revision = await until_put(store, b"a")
        changes = store.watch(b"", after_revision=revision)
        following = asyncio.ensure_future(take(changes, 2))
        await asyncio.sleep(2.5)  # longer than a token lives
        await until_put(store, b"b")
        etcd.kill()  # which forgets all tokens
        etcd.start()
        await until_put(store, b"c")
        assert [change.puts[0].key for change in await following] == [b"b", b"c"]
        outside = open_etcd(etcd, b"/other/", user="moonpool", password_file=str(password))
        with pytest.raises(StoreFailed, match="permission denied"):
            await outside.read(b"", timeout_s=T_S)
        await outside.close()
        nobody = open_etcd(etcd)
        with pytest.raises(StoreFailed):
            await nobody.read(b"", timeout_s=T_S)
        await nobody.close()
        password.write_text("wrong")
        wrong = open_etcd(etcd, user="moonpool", password_file=str(password))
        with pytest.raises(StoreFailed, match="user 'moonpool'"):
            await wrong.read(b"", timeout_s=T_S)
        await wrong.close()
        await store.close()


async def test_a_full_database_refuses_and_says_so(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", flags=["--quota-backend-bytes", "3000000"]) as etcd:
        store = open_etcd(etcd)
        with pytest.raises(StoreFailed, match="space exceeded"):
            for number in range(100):  # its size is known some commits later
                await store.commit([Put(b"%d" % number, bytes(1_000_000))], timeout_s=T_S)
        await store.close()
