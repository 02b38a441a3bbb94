"""Keyspaces: any fact that differs gives another digest, equal facts give the same one in every process."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import (
    FACTS_TEXT_MAX,
    WORLD_MAX,
    KeyspaceSpec,
    Kind,
    object_hash,
    objects_keyspace,
)

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="llama", shard_bytes=(4096, 4096), block_tokens=16)


def test_the_digest_is_fixed_for_all_time() -> None:
    assert SPEC.digest().hex() == "936c70da342e51f5cb69dad35057c0bc"
    assert objects_keyspace().digest().hex() == "b43d434dc9ad4a47d3690f9cbbeb02ca"


@pytest.mark.parametrize(
    "change",
    [
        {"kind": Kind.FLAT},
        {"name": "llama2"},
        {"shard_bytes": (4096,)},
        {"shard_bytes": (8192, 4096)},
        {"hash_bytes": 16},
        {"block_tokens": 32},
        {"tenant": "other"},
        {"identity": (("weights", "ab"),)},
        {"format_version": 2},
    ],
)
def test_each_fact_counts(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(SPEC, **change).digest() != SPEC.digest()


@settings(derandomize=True, deadline=None)
@given(
    name=st.text(min_size=1, max_size=100),
    shard_bytes=st.lists(st.integers(1, 1 << 40), min_size=1, max_size=8).map(tuple),
    identity=st.dictionaries(st.text(max_size=9), st.text(max_size=9)).map(
        lambda d: tuple(sorted(d.items()))
    ),
)
def test_a_spec_survives_the_wire(
    name: str, shard_bytes: tuple[int, ...], identity: tuple[tuple[str, str], ...]
) -> None:
    spec = KeyspaceSpec(kind=Kind.CHAINED, name=name, shard_bytes=shard_bytes, identity=identity)
    spec.check()
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=KeyspaceSpec)
    assert back == spec
    assert back.digest() == spec.digest()
    assert back.world == len(shard_bytes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shard_bytes": ()}, "shard_bytes"),
        ({"shard_bytes": (1,) * (WORLD_MAX + 1)}, "shard_bytes"),
        ({"shard_bytes": (0, 4)}, "shard_bytes"),
        ({"shard_bytes": (-4,)}, "shard_bytes"),
        ({"shard_bytes": ((1 << 64) - 1,)}, "shard_bytes"),
        ({"shard_bytes": (0,)}, "kind"),
        ({"hash_bytes": 20}, "hash_bytes"),
        ({"name": ""}, "name"),
        ({"name": "x" * 513}, "name"),
        ({"tenant": ""}, "tenant"),
        ({"identity": (("b", ""), ("a", ""))}, "identity"),
        ({"identity": tuple((f"{i:03}", "") for i in range(65))}, "identity"),
        ({"identity": (("a", "x" * (FACTS_TEXT_MAX // 2)), ("b", "y" * (FACTS_TEXT_MAX // 2)))}, "identity"),
    ],
)
def test_a_spec_that_cannot_be_served_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidParams, match=f"keyspace.{field} is .*; allowed: "):
        msgspec.structs.replace(SPEC, **change).check()


def test_plain_objects() -> None:
    spec = objects_keyspace("team-a")
    spec.check()
    assert spec.variable_size
    assert spec.world == 1
    assert spec.digest() != objects_keyspace().digest()
    assert len(object_hash("key")) == spec.hash_bytes
    assert object_hash("key") != object_hash("kez")


def test_ranks_of_objects_with_sizes_of_their_own() -> None:
    spec = msgspec.structs.replace(SPEC, kind=Kind.FLAT, shard_bytes=(0,) * 8)
    spec.check()
    assert spec.variable_size
    assert spec.world == 8
