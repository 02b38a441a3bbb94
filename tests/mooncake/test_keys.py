"""Keys in vLLM's form: ranks of one row a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mooncake_pools import Memory, Pool

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.poolkey import PoolKey
from moonpool.store_client import ClientSettings, StoreClient
from moonpool.store_client.mooncake.keys import RANKS_A_ROW, KeyBook

HASH = "0123456789abcdef" * 4
SMALL = st.integers(0, 70)


def text(
    tp: int = 0, *, model: str = "llama", pcp: int = 0, pp: int = 0, group: int = 0, name: str = HASH
) -> str:
    return f"{model}@tp_rank:{tp}@pcp{pcp}@dcp0@pp_rank:{pp}@group:{group}@{name}"


class Registry:
    """What a KeyBook registers."""

    def __init__(self) -> None:
        self.specs: dict[bytes, KeyspaceSpec] = {}

    def register(self, spec: KeyspaceSpec) -> bytes:
        spec.check()
        self.specs[spec.digest()] = spec
        return spec.digest()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    model=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
        lambda m: "\n" not in m
    ),
    ranks=st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL),
    name=st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32),
    rest=st.sampled_from(["", "@store_tp:8", "@store_tp:8@store_format:x"]),
)
def test_the_text_comes_back(
    model: str, ranks: tuple[int, int, int, int, int], name: bytes, rest: str
) -> None:
    registry = Registry()
    book = KeyBook("tenant", registry.register)
    key = PoolKey(model, name, *ranks, rest=rest).text()
    place = book.place(key)
    assert place == book.place(key)
    spec = registry.specs[place.keyspace]
    assert (spec.tenant, spec.world) == ("tenant", RANKS_A_ROW)
    assert place.rank == ranks[0] % RANKS_A_ROW
    assert place.block_hash == name
    assert book.text(spec, place.rank, place.block_hash) == key


def test_eight_ranks_share_a_row_and_nothing_else_does() -> None:
    book = KeyBook("default", Registry().register)
    octet = [book.place(text(tp)) for tp in range(8)]
    assert {place.keyspace for place in octet} == {octet[0].keyspace}
    assert {place.block_hash for place in octet} == {bytes.fromhex(HASH)}
    assert [place.rank for place in octet] == list(range(8))
    others = [text(8), text(pcp=1), text(pp=1), text(group=1), text(model="other"), text(name=HASH[:32])]
    keyspaces = {book.place(key).keyspace for key in others} | {octet[0].keyspace}
    assert len(keyspaces) == 7


@pytest.mark.parametrize(
    "key",
    [
        "plain",
        text(name=HASH.upper()),
        text(name=HASH[:-2]),
        text(name=HASH[:-2] + " 0"),
        text().replace("tp_rank:0", "tp_rank:00"),
        text() + "#" + "ab" * 16,
        "x" * 513 + text(),
        "@" + HASH,
        HASH,
    ],
)
def test_everything_else_is_a_plain_object(key: str) -> None:
    book = KeyBook("default", Registry().register)
    place = book.place(key)
    assert place.keyspace == book.objects.digest()
    assert place != book.place(f"{key}x")


@pytest.fixture(scope="module")
def moonpool() -> Iterator[Pool]:
    """With one store."""
    with Pool("moonpool") as pool:
        pool.store()
        yield pool


@pytest.fixture(scope="module")
def client(moonpool: Pool) -> Iterator[StoreClient]:
    """To look behind the store."""
    with StoreClient(ClientSettings(master=moonpool.master.address, timeout_s=20)) as client:
        yield client


def test_tp8_costs_one_row_a_block(moonpool: Pool, client: StoreClient) -> None:
    store: Any = moonpool.store(0)
    before = client.status()
    keys = [text(tp, name=f"{block:064x}") for block in range(50) for tp in range(8)]
    memory = Memory(1 << 20)
    places = [memory.address + 1000 * i for i in range(len(keys))]
    sizes = [500 + i for i in range(len(keys))]
    assert store.batch_put_from(keys, places, sizes) == [0] * len(keys)
    after = client.status()
    assert int(after["rows"]) - int(before["rows"]) == 50
    assert int(after["copies"]) - int(before["copies"]) == 400
    assert store.batch_is_exist(keys) == [1] * 400
    into = Memory(1 << 20)
    found = store.batch_get_into(keys, [into.address + 1000 * i for i in range(400)], [1000] * 400)
    assert found == sizes
    for i in (0, 7, 8, 399):
        assert into.at(1000 * i, sizes[i]) == memory.at(1000 * i, sizes[i])


def test_each_rank_stands_alone(moonpool: Pool) -> None:
    store: Any = moonpool.store(0)
    name = "ee" * 32
    ranks = [text(tp, name=name) for tp in range(8)]
    assert store.put(ranks[3], b"three") == 0
    assert store.batch_is_exist(ranks) == [0, 0, 0, 1, 0, 0, 0, 0]
    assert store.put(ranks[5], b"five!!") == 0
    assert store.get_batch(ranks[2:6]) == [b"", b"three", b"", b"five!!"]
    assert store.upsert(ranks[3], b"another three") == 0
    assert store.get_batch(ranks[2:6]) == [b"", b"another three", b"", b"five!!"]
    assert store.remove(ranks[3]) == 0
    assert store.batch_is_exist(ranks) == [0, 0, 0, 0, 0, 1, 0, 0]
    assert store.remove(ranks[3]) == -704
    assert set(store.batch_get_replica_desc(ranks)) == {ranks[5]}
    assert store.remove_by_regex(f"tp_rank:5.*{name}") == 1
    assert store.batch_is_exist(ranks) == [0] * 8


def test_tenants_see_nothing_of_each_other(moonpool: Pool) -> None:
    one, two = (moonpool.module.MooncakeDistributedStore() for _ in range(2))
    arguments = moonpool.setup_arguments(0)
    assert one.setup(*arguments, tenant_id="one") == 0
    assert two.setup(*arguments, tenant_id="two") == 0
    try:
        for key in ("plain", text(name="dd" * 32)):
            assert one.put(key, b"mine") == 0
            assert two.is_exist(key) == 0
        assert two.remove_all(True) == 0
        assert two.remove_by_regex(".") == 0
        assert one.get("plain") == b"mine"
        assert one.remove_all(True) == 2
    finally:
        one.close()
        two.close()
