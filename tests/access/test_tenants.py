"""Two tenants in one pool, with the same prompts: neither finds, probes, counts, reads or removes what the other has."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from support.guarded import TOKENS
from support.processes import MasterProcess, NodeProcess
from support.waiting import soon, wait_until

from moonpool.schemas import messages as m
from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Forbidden, KeyspaceUnknown, MoonpoolError
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.header import HEADER_DTYPE, SlotState
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import BlockGet, BlockPut, StoreClient
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node.headers import words_of
from moonpool.store_client.node.scoped_reads import COPY_BYTES, checked_pieces, own_headers
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.transports.lane import Lane

HELLO = m.Hello(PROTOCOL_VERSION, "client", "test")
BLOCK_BYTES = 4096
CHAIN = [secrets.token_bytes(32) for _ in range(5)]


def spec_of(tenant: str) -> KeyspaceSpec:
    return KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(BLOCK_BYTES,), tenant=tenant)


class Shared:
    """One pool, and a client of each tenant."""

    def __init__(self, master: MasterProcess, node: NodeProcess) -> None:
        self.master = master
        self.node = node
        self.clients = {name: StoreClient(self.settings(name)) for name in ("red", "blue", "admin")}

    def settings(self, name: str) -> ClientSettings:
        return ClientSettings(
            master=self.master.address,
            run_dir=self.node.run_dir,
            token=TOKENS[name],
            tenant=name,
            transport="tcp",
            timeout_s=30,
        )

    def ask(self, door: str, name: str, message: m.Message) -> m.Message:
        """A request of that tenant's. Raises what is answered."""
        address = {"master": self.master.address, "node": self.node.info.rpc_address}
        address["socket"] = f"unix:{self.node.info.unix_path}"
        decode = m.decode_from_master if door == "master" else m.decode_from_node
        connection = RpcConnection(address[door], HELLO, decode, Credentials(TOKENS[name]))
        try:
            return connection.call(message, soon())
        finally:
            connection.close()

    def refusal(self, door: str, name: str, message: m.Message) -> tuple[type, str]:
        with pytest.raises(MoonpoolError) as caught:
            self.ask(door, name, message)
        return type(caught.value), str(caught.value)


@pytest.fixture(scope="module")
def shared(tokens_file: Path) -> Iterator[Shared]:
    with (
        MasterProcess(["--tokens-file", str(tokens_file)]) as master,
        NodeProcess(master, tokens_file=tokens_file, token=TOKENS["node"]) as node,
    ):
        node.credentials = Credentials(TOKENS["admin"])
        node.wait_for("master_connected", 1)
        shared = Shared(master, node)
        try:
            yield shared
        finally:
            for client in shared.clients.values():
                client.close()


@pytest.fixture(scope="module")
def stored(shared: Shared) -> bytes:
    """Red's keyspace, with the chain in it."""
    red = shared.clients["red"]
    keyspace = red.register_keyspace(spec_of("red"))
    assert set(put(red, keyspace)) == {m.Status.OK}
    wait_until(lambda: red.match(keyspace, CHAIN) == len(CHAIN))
    return keyspace


def memory(count: int) -> tuple[np.ndarray, Fragments]:
    room = np.zeros(count * BLOCK_BYTES, dtype=np.uint8)
    addresses = np.uint64(address_of(room)) + np.uint64(BLOCK_BYTES) * np.arange(count, dtype=np.uint64)
    return room, Fragments.grid(addresses.reshape(-1, 1), np.array([BLOCK_BYTES], dtype=np.uint64))


def put(client: StoreClient, keyspace: bytes) -> list[int]:
    room, source = memory(len(CHAIN))
    room[:] = 7
    return client.put_blocks([BlockPut(keyspace, 0, CHAIN, 0, source)])[0].tolist()


def test_the_same_prompt_is_no_hit_for_another_tenant(shared: Shared, stored: bytes) -> None:
    blue = shared.clients["blue"]
    before = blue.status()
    keyspace = blue.register_keyspace(spec_of("blue"))
    assert keyspace != stored
    assert blue.match(keyspace, CHAIN) == 0
    room, into = memory(len(CHAIN))
    statuses = blue.get_blocks(BlockGet(keyspace, 0, CHAIN, 0, into))
    assert m.Status.OK not in statuses.tolist() and not room.any()
    assert {**blue.status(), "keyspaces": 0} == {**before, "keyspaces": 0}
    assert set(put(blue, keyspace)) == {m.Status.OK}, "not EXISTS: that would tell"
    wait_until(lambda: blue.match(keyspace, CHAIN) == len(CHAIN))


def test_no_count_of_one_depends_on_the_other(shared: Shared, stored: bytes) -> None:
    red, blue = shared.clients["red"], shared.clients["blue"]
    before = blue.status(), blue.cluster_map(), blue.list_keyspaces()
    assert red.put(f"of red {secrets.token_hex(4)}", b"x" * 100_000) is m.Status.OK
    other = red.register_keyspace(msgspec.structs.replace(spec_of("red"), name="another"))
    assert set(put(red, other)) == {m.Status.OK}
    red.pin(stored, CHAIN[:1])
    assert (blue.status(), blue.cluster_map(), blue.list_keyspaces()) == before
    assert blue.status()["tenant"] == "blue"
    told = shared.ask("node", "blue", m.GetStatus())
    assert isinstance(told, m.StatusReport) and "objects" not in told.facts
    seen = shared.clients["admin"].status()
    assert seen["rows"] > blue.status()["rows"] and seen["nodes_live"] == 1


def test_the_same_key_is_another_object(shared: Shared) -> None:
    red, blue = shared.clients["red"], shared.clients["blue"]
    assert red.put("one key", b"red") is m.Status.OK
    assert blue.batch_is_exist(["one key"]) == [False]
    assert blue.get("one key") is None
    assert blue.put("one key", b"blue") is m.Status.OK
    assert (red.get("one key"), blue.get("one key")) == (b"red", b"blue")
    assert blue.batch_remove(["one key"], force=True).count == 1
    assert red.get("one key") == b"red"


# ------------------------------------------------------------ requests that name a keyspace

H = CHAIN[0]


def naming(keyspace: bytes) -> dict[str, list[m.Message]]:
    """Every request that names a keyspace, by the door that takes it; well made, and not."""
    item = m.BeginItem(keyspace, 0, 0, b"", secrets.token_bytes(32), pack_u64([BLOCK_BYTES]))
    put_item = m.PutItem(keyspace, 0, 0, b"", H, BLOCK_BYTES)
    own = m.PutItem(spec_of("blue").digest(), 0, 0, b"", b"not a hash", BLOCK_BYTES)
    return {
        "master": [
            m.Probe(keyspace, [m.ProbedRun(0, 1, 32, H)]),
            m.Match(keyspace, [(0, H)]),
            m.Match(keyspace, [(7, b"not a hash")]),
            m.Locate(keyspace, 0, [], b"not a hash" * 9999),
            m.Presence(keyspace, b"not a hash" * 9999),
            m.PutStart([m.PutItem(keyspace, 0, 0, b"", b"not a hash" * 9999, BLOCK_BYTES)]),
            m.Presence(keyspace, H),
            m.Locate(keyspace, 0, [m.RunSlice(H, 0, 1)]),
            m.Renew(keyspace, H),
            m.PutStart([put_item]),
            m.PutStart([own, put_item]),
            m.PutAbandon(keyspace, 0, H),
            m.ReportBad(keyspace, 0, H, b"s" * 16, 0, 1),
            m.Remove(keyspace, H, force=True),
            m.Remove(keyspace, b"not a hash", force=True),
            m.Clear(keyspace),
            m.Pin(keyspace, H),
            m.Unpin(keyspace, H),
            m.SetReplicas(keyspace, 2),
            m.Describe(keyspace, H),
            m.DescribeKeyspace(keyspace),
        ],
        "node": [
            m.ListKeys(keyspace),
            m.ListKeys(keyspace, -7),
            m.PutSmall(item, bytes(BLOCK_BYTES)),
            m.PutSmall(item, b"too short"),
        ],
        "socket": [
            m.ListKeys(keyspace),
            m.Begin(1, 1, [item]),
            m.Begin(1, 1, [item], [9]),
            m.PutAhead(1, 1, item),
            m.PutSmall(item, bytes(BLOCK_BYTES)),
            m.PutSmall(item, b"too short"),
        ],
    }


def test_the_list_above_misses_no_request() -> None:
    naming_one = {
        kind
        for kind in get_args(m.ClientToMaster)
        if {"keyspace", "items"} & {field.name for field in msgspec.structs.fields(kind)}
    }
    for_admins = {m.Warm}  # who see the keyspaces of all tenants
    assert naming_one - for_admins == {type(message) for message in naming(b"k" * 16)["master"]}
    of_nodes = {
        kind
        for kind in get_args(m.ClientToNode)
        if {"keyspace", "items", "item"} & {field.name for field in msgspec.structs.fields(kind)}
    }
    assert of_nodes == {type(message) for message in naming(b"k" * 16)["socket"]} | {m.PullWrite}


@pytest.mark.parametrize("door", ["master", "node", "socket"])
def test_a_foreign_keyspace_is_as_unknown_as_one_that_is_none(
    shared: Shared, stored: bytes, door: str
) -> None:
    nowhere = secrets.token_bytes(16)
    for foreign, unknown in zip(naming(stored)[door], naming(nowhere)[door], strict=True):
        kind, text = shared.refusal(door, "blue", foreign)
        assert kind is KeyspaceUnknown, foreign
        assert (kind, text.replace(stored.hex(), nowhere.hex())) == shared.refusal(door, "blue", unknown)
    assert shared.clients["red"].match(stored, CHAIN) == len(CHAIN), "and nothing has happened to it"


@pytest.mark.parametrize("door", ["master", "node", "socket", "lanes"])
def test_nobody_registers_keyspaces_of_another_tenant(shared: Shared, stored: bytes, door: str) -> None:
    for spec in (spec_of("red"), spec_of("nobody")):
        with pytest.raises(Forbidden, match="set tenant = 'blue'"):
            if door == "lanes":
                with lane_of(shared, "blue") as lane:
                    lane.register(m.RegisterKeyspace(spec), soon())
            else:
                shared.ask(door, "blue", m.RegisterKeyspace(spec))


def test_keyspaces_of_another_tenant_are_not_listed(shared: Shared, stored: bytes) -> None:
    own = shared.ask("master", "blue", m.ListKeyspaces("blue"))
    assert isinstance(own, m.Keyspaces) and {spec.tenant for spec in own.specs} <= {"blue"}
    kind, text = shared.refusal("master", "blue", m.ListKeyspaces("red"))
    assert kind is Forbidden
    assert shared.refusal("master", "blue", m.ListKeyspaces("nobody")) == (
        kind,
        text.replace("red", "nobody"),
    )
    everything = shared.ask("master", "admin", m.ListKeyspaces("red"))
    assert isinstance(everything, m.Keyspaces) and everything.specs


# ------------------------------------------------------------ data lanes


@contextlib.contextmanager
def lane_of(shared: Shared, name: str) -> Iterator[Lane]:
    lane = Lane(shared.node.info.data_address, HELLO, soon(), Credentials(TOKENS[name]))
    try:
        yield lane
    finally:
        lane.close()


def test_slots_of_another_tenant_cannot_be_read(shared: Shared, stored: bytes) -> None:
    found = shared.ask("master", "red", m.Locate(stored, 0, [m.RunSlice(CHAIN[-1], 0, len(CHAIN))]))
    assert isinstance(found, m.Located)
    request = m.LaneRead(found.slots, found.generations, found.lengths)
    for name, status in (("blue", m.Status.MISSING), ("red", m.Status.OK), ("admin", m.Status.OK)):
        room, into = memory(len(CHAIN))
        with lane_of(shared, name) as lane:
            statuses, headers = lane.read(request, into, soon())
        assert set(statuses.tolist()) == {status}
        assert len(headers) == (len(CHAIN) if status is m.Status.OK else 0)
        assert room.any() == (status is m.Status.OK)


def test_small_objects_of_another_tenant_cannot_be_read(shared: Shared, stored: bytes) -> None:
    found = shared.ask("master", "red", m.Locate(stored, 0, [m.RunSlice(CHAIN[-1], 0, len(CHAIN))]))
    assert isinstance(found, m.Located)
    request = m.GetSmall(found.slots, found.generations, found.lengths)
    nothing = m.SmallData(bytes([m.Status.MISSING] * len(CHAIN)), b"", b"")
    for door in ("node", "socket"):
        assert shared.ask(door, "blue", request) == nothing
        for name in ("red", "admin"):
            answer = shared.ask(door, name, request)
            assert isinstance(answer, m.SmallData) and answer.statuses == bytes(len(CHAIN))
            assert len(answer.payload) == len(CHAIN) * BLOCK_BYTES


def test_a_write_into_another_tenants_keyspace_is_refused(shared: Shared, stored: bytes) -> None:
    texts = []
    for keyspace in (stored, secrets.token_bytes(16)):
        item = m.BeginItem(keyspace, 0, 0, b"", secrets.token_bytes(32), pack_u64([BLOCK_BYTES]))
        _, source = memory(1)
        with lane_of(shared, "blue") as lane, pytest.raises(KeyspaceUnknown) as caught:
            lane.write(m.LaneWrite(1, item), source, soon())
        texts.append(str(caught.value).replace(keyspace.hex(), ""))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("lengths", [[10, 20, 30], [COPY_BYTES, 5, COPY_BYTES], [3 * COPY_BYTES + 1, 7]])
def test_what_changes_hands_while_it_is_sent_is_blanked(lengths: list[int]) -> None:
    """The slot's header is looked at after its bytes were copied, and before they are sent."""
    data = bytearray(b"x" * sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    sizes = np.array(lengths)
    rows = np.arange(len(lengths))
    words = words_of(SlotState.COMMITTED, np.arange(1, len(lengths) + 1, dtype=np.uint64))
    now = words.copy()

    def sent() -> bytes:
        return b"".join(checked_pieces(memoryview(data), starts, sizes, rows, words, lambda some: now[some]))

    assert sent() == bytes(data)
    now[-1] += 1
    assert sent() == bytes(data[: -lengths[-1]]) + bytes(lengths[-1])
    now[:] = 0
    assert sent() == bytes(sum(lengths))


def test_headers_of_other_keyspaces_are_blanked() -> None:
    headers = np.zeros(3, dtype=HEADER_DTYPE)
    headers["keyspace"] = [1, 2, 1]
    headers["block_hash"] = b"h" * 32
    assert own_headers(headers, np.array([1, 2], dtype=np.uint64)) is headers
    shown = own_headers(headers, np.array([1], dtype=np.uint64))
    assert shown["block_hash"].tolist() == [b"h" * 32, b"", b"h" * 32]
    assert shown["keyspace"].tolist() == [1, 0, 1]
