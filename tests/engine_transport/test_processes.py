"""Real processes and the real engine, over tcp: right bytes, and peers that die, freeze and come back."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from client.chains import Engine, all_ok, chained, get_chain, put_chain
from client.pool import MakeClient, Pool, client_of, wait_for_nodes
from support.payloads import chain_hashes
from support.processes import ServerProcess
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import BeginItem, Hello, Message, PullWrite, Status, decode_from_node
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import BlockGet, BlockPut, ClientSettings, StoreClient
from moonpool.store_client.connect import Connector
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.engine.access import EngineAccess
from moonpool.store_client.transports.engine.engine import open_engine
from moonpool.store_client.transports.engine.transport import EngineTransport
from moonpool.store_client.transports.staging import Staging

pytestmark = pytest.mark.mooncake

BLOCK_BYTES = 64 << 10
HELLO = Hello(PROTOCOL_VERSION, "client", "test")


def stored(
    client: StoreClient, name: str, blocks: int = 40, shard_bytes: int = BLOCK_BYTES
) -> tuple[bytes, list[bytes]]:
    """A chain in the pool."""
    keyspace = client.register_keyspace(chained(name, shard_bytes))
    chain = chain_hashes(f"{name} {time.monotonic()}", blocks)
    assert all_ok(put_chain(client, keyspace, chain, shard_bytes))
    wait_until(lambda: client.match(keyspace, chain) == blocks)
    return keyspace, chain


@pytest.mark.parametrize("fragments", [1, 2, 16, 128])
def test_right_bytes_in_any_number_of_fragments(
    client: StoreClient, engine_pool: Pool, fragments: int
) -> None:
    pulls = engine_pool.node.status()["pulls"]
    keyspace = client.register_keyspace(chained("fragments"))
    chain = chain_hashes(f"{fragments} {time.monotonic()}", 100)
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES, fragments=fragments))
    wait_until(lambda: client.match(keyspace, chain) == 100)
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES, fragments=fragments))
    status = engine_pool.node.status()
    assert status["pulls"] > pulls
    assert status["tcp_bytes_read"] == status["tcp_bytes_written"] == 0


def test_objects_of_any_size(client: StoreClient) -> None:
    values = [os.urandom(size) for size in (1, 4095, 4097, 100_000, (1 << 20) + 5)]
    keys = [f"object of {len(value)} at {time.monotonic()}" for value in values]
    assert client.batch_put(keys, values) == [Status.OK] * 5
    assert client.batch_get(keys) == values


def test_many_threads_share_one_engine(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained("threads"))
    wrong: list[int] = []

    def use(number: int) -> None:
        chain = chain_hashes(f"{number} {time.monotonic()}", 20)
        put = put_chain(client, keyspace, chain, BLOCK_BYTES, fragments=4)
        wait_until(lambda: client.match(keyspace, chain) == 20)
        if not (all_ok(put) and all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))):
            wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_node_that_cannot_be_met_is_used_otherwise(engine_pool: Pool) -> None:
    staging = Staging(HostCopier())
    settings = ClientSettings(transport="mooncake")
    connector = Connector(settings, HELLO, HostCopier(), staging, lambda keyspace: None, NO_CREDENTIALS)
    info = engine_pool.node.info
    addresses = ["", "nonsense", "rdma://127.0.0.1:15000", "tcp://192.0.2.77:15000"]
    others = [msgspec.structs.replace(info, engine_address=address) for address in addresses]
    transports = [connector.connect(each) for each in (info, *others)]
    assert [transport.name for transport in transports] == ["mooncake", *["shm"] * 4]
    for transport in transports:
        transport.close()
    connector.close()
    staging.close()


def test_another_generation_is_a_miss(client: StoreClient, engine_pool: Pool) -> None:
    keyspace, chain = stored(client, "generations", 2)
    copies = [client.describe(keyspace, one).copies[0] for one in chain]
    access = EngineAccess(open_engine("tcp", "127.0.0.1", ""), HostCopier())
    transport = EngineTransport(engine_pool.node.info, HELLO, access, lambda keyspace: None)
    engine = Engine(2, BLOCK_BYTES)
    generations = np.array([copies[0].generation, copies[1].generation + 1], dtype=np.uint64)
    batch = ReadBatch(
        keyspace=keyspace,
        rank=0,
        hashes=np.array(chain, dtype="S32"),
        slots=np.array([copy.slot for copy in copies], dtype=np.uint32),
        generations=generations,
        lengths=engine.fragments.lengths(),
        into=engine.fragments,
    )
    statuses = transport.read(batch, soon())
    transport.close()
    access.close()
    assert statuses.tolist() == [Status.OK, Status.MISSING]
    assert not engine.wrong(chain, 0, statuses)
    assert not engine.block(1).any()


def test_a_killed_node_fails_soon_and_comes_back_at_another_port(
    own_pool: Pool, make_client: MakeClient
) -> None:
    client = make_client(own_pool, transport="mooncake", breaker_retry_s=0.1)
    keyspace, chain = stored(client, "killed")
    before = own_pool.node.info.engine_address
    own_pool.node.kill()
    start_s = time.monotonic()
    assert not (get_chain(client, keyspace, chain, BLOCK_BYTES) == Status.OK).any()
    assert time.monotonic() - start_s < at_most(5)
    own_pool.node.start()
    while own_pool.node.info.engine_address == before:  # the engine chooses its port at random
        own_pool.node.kill()
        own_pool.node.start()

    def there() -> bool:
        return all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))

    wait_until(there)
    stored(client, "killed again")


def test_a_node_frozen_amid_reads(own_pool: Pool, make_client: MakeClient) -> None:
    """The deadline holds, what arrives later never reaches the caller, and all is well again afterwards."""
    client = make_client(own_pool, transport="mooncake", breaker_retry_s=0.1)
    keyspace, chain = stored(client, "frozen", 48, 1 << 20)
    engine = Engine(48, 1 << 20, seed=1)
    get = BlockGet(keyspace, 0, chain, 0, engine.fragments)
    assert all_ok(client.get_blocks(get, timeout_s=30))
    freezer = threading.Timer(0.03, own_pool.node.freeze)
    freezer.start()
    statuses = np.zeros(0, dtype=np.uint8)
    while not (statuses == Status.FAILED).any():
        start_s = time.monotonic()
        statuses = client.get_blocks(get, timeout_s=1)
        assert time.monotonic() - start_s < at_most(1)
    freezer.join()
    for layer in engine.layers:
        layer[:] = 0xEE
    own_pool.node.thaw()
    time.sleep(1)
    assert all((layer == 0xEE).all() for layer in engine.layers)

    def there() -> bool:
        return all_ok(get_chain(client, keyspace, chain, 1 << 20))

    wait_until(there)


def test_a_put_that_was_given_up_never_gets_other_bytes(own_pool: Pool, make_client: MakeClient) -> None:
    """The node was frozen when it was asked; once it goes on, the writer's memory holds something else."""
    client = make_client(own_pool, transport="mooncake", breaker_retry_s=0.1)
    keyspace, _ = stored(client, "given up")
    chain = chain_hashes(f"late {time.monotonic()}", 40)
    own_pool.node.freeze()
    engine = Engine(40, BLOCK_BYTES)
    engine.fill(chain, 0)
    statuses = client.put_blocks([BlockPut(keyspace, 0, chain, 0, engine.fragments)], timeout_s=0.5)[0]
    assert (statuses == Status.FAILED).all()
    own_pool.node.thaw()
    with contextlib.suppress(
        AssertionError
    ):  # a node that sees first that the writer hung up doesn't even begin
        own_pool.node.wait_for("pulls_failed", 1, timeout_s=3.0)
    assert client.match(keyspace, chain) == 0

    def put() -> bool:
        statuses = put_chain(client, keyspace, chain, BLOCK_BYTES)
        return bool(((statuses == Status.OK) | (statuses == Status.EXISTS)).all())

    wait_until(put)
    wait_until(lambda: client.match(keyspace, chain) == 40)
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))


class OtherWriter(ServerProcess):
    """A process that offers its memory to the node; this one asks in its name."""

    def __init__(self, pool: Pool, keyspace: bytes, blocks: int) -> None:
        program = Path(__file__).parent.parent / "support" / "engine_writer.py"
        super().__init__([str(program), str(blocks * BLOCK_BYTES)])
        self._pool = pool
        self._keyspace = keyspace
        self._blocks = blocks

    def put(self, chain: list[bytes]) -> Message:
        """PullWrite of all its memory. Raises what the node answers."""
        found = re.search(r"memory (\d+) guard (\d+) token (\d+)", self.output())
        assert found is not None
        memory, guard, token = map(int, found.groups())
        lengths = pack_u64([BLOCK_BYTES] * self._blocks)
        item = BeginItem(self._keyspace, 0, 0, b"", b"".join(chain), lengths)
        sizes = pack_u64([self._blocks * BLOCK_BYTES])
        request = PullWrite(item, self.address, pack_u64([memory]), sizes, guard, token)
        connection = RpcConnection(self._pool.node.info.rpc_address, HELLO, decode_from_node)
        try:
            return connection.call(request, time.monotonic() + 60)
        finally:
            connection.close()


@pytest.mark.parametrize("end", ["killed", "frozen", "frozen before it was ever met"])
def test_a_writer_lost_amid_a_pull_leaks_no_slot(own_pool: Pool, make_client: MakeClient, end: str) -> None:
    client = make_client(own_pool, transport="mooncake")
    keyspace, kept = stored(client, "lost writer")
    chains = [chain_hashes(f"{i} {time.monotonic()}", 40) for i in range(2)]
    with OtherWriter(own_pool, keyspace, 40) as writer:
        if end != "frozen before it was ever met":
            writer.put(chains[0])
        free_bytes = own_pool.node.status()["free_bytes"]
        writer.freeze()
        outcome: list[TransferFailed] = []

        def put() -> None:
            with pytest.raises(TransferFailed) as caught:
                writer.put(chains[1])
            outcome.append(caught.value)

        putting = threading.Thread(target=put)
        putting.start()
        own_pool.node.wait_for("objects_writing", 40)
        if end == "killed":
            writer.kill()
        else:  # it costs others nothing meanwhile
            start_s = time.monotonic()
            assert all_ok(get_chain(client, keyspace, kept, BLOCK_BYTES))
            stored(client, "meanwhile", 10)
            assert time.monotonic() - start_s < at_most(5)
            free_bytes = int(free_bytes) - 10 * BLOCK_BYTES
        putting.join(60)
        assert len(outcome) == 1
        own_pool.node.wait_for("objects_writing", 0)
        assert own_pool.node.status()["free_bytes"] == free_bytes
        stored(client, "in their place", 200)
        if end != "killed":
            writer.thaw()  # what it still sends lands nowhere
            time.sleep(0.5)
    assert client.match(keyspace, chains[1]) == 0
    assert all_ok(get_chain(client, keyspace, kept, BLOCK_BYTES))
    status = own_pool.node.status()
    assert status["pulls_failed"] == 1
    assert status["pull_blocks_given_up"] == int(end != "frozen before it was ever met")


def test_nothing_is_left_behind(engine_pool: Pool, make_client: MakeClient) -> None:
    def use() -> None:
        with client_of(engine_pool, transport="mooncake") as client:
            for _ in range(3):
                keyspace, chain = stored(client, "leaks")
                assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))

    def held() -> tuple[int, int, int, int]:
        node = f"/proc/{engine_pool.node.pid}/task"
        return (
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            engine_pool.node.descriptors(),
            len(os.listdir(node)),
        )

    use()
    before = held()
    for _ in range(5):
        use()
    after = held()
    # The engine keeps up to four connections to a peer.
    assert all(now <= then + 4 for then, now in zip(before, after, strict=True)), (before, after)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has never opened an engine, and can't."""
    monkeypatch.setattr("moonpool.store_client.transports.engine.engine._opened", None)
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    yield


def test_without_the_package_the_client_goes_on(
    no_package: None, engine_pool: Pool, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(engine_pool, transport="mooncake")
    keyspace, chain = stored(client, "without")
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))
    lines = [record.getMessage() for record in caplog.records if "mooncake" in record.getMessage()]
    assert len(lines) == 1
    assert "pip install moonpool[rdma]" in lines[0]


def test_a_node_without_the_package_goes_on(tmp_path: Path, make_client: MakeClient) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    (tmp_path / "mooncake" / "engine.py").write_text('raise ImportError("libibverbs.so.1: cannot open")')
    os.environ["PYTHONPATH"], before = str(tmp_path), os.environ.get("PYTHONPATH")
    try:
        with Pool(engine_protocol="tcp") as pool:
            client = make_client(pool, transport="mooncake")
            stored(client, "without")
            assert pool.node.info.engine_address == ""
            lines = [line for line in pool.node.output().splitlines() if "mooncake" in line]
            assert len(lines) == 1
            assert "libibverbs.so.1: cannot open" in lines[0]
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def test_a_closed_door_is_gone_round(make_client: MakeClient) -> None:
    with Pool() as pool:
        client = make_client(pool, transport="mooncake")
        wait_for_nodes(client)
        stored(client, "closed door")
