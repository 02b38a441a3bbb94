"""PoolKey: both text forms round-trip; anything else is an InvalidKey, never a guess."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.poolkey import PoolKey, parse_pool_key

RANK = st.integers(0, 99_999)
MODEL = st.text(st.characters(exclude_characters="@#\n", exclude_categories=["Cs"]), min_size=1, max_size=40)
REST = st.lists(
    st.tuples(st.sampled_from(["store_tp", "store_format"]), st.from_regex(r"[A-Za-z0-9.]*", fullmatch=True))
)


@settings(derandomize=True, deadline=None)
@given(
    model=MODEL,
    block_hash=st.binary(min_size=1, max_size=32),
    ranks=st.tuples(RANK, RANK, RANK, RANK, RANK),
    rest=REST.map(lambda pairs: "".join(f"@{name}:{value}" for name, value in pairs)),
    keyspace=st.none() | st.binary(min_size=16, max_size=16),
)
def test_text_round_trips(
    model: str, block_hash: bytes, ranks: tuple[int, int, int, int, int], rest: str, keyspace: bytes | None
) -> None:
    tp, pcp, dcp, pp, group = ranks
    key = PoolKey(model, block_hash, tp, pcp, dcp, pp, group, rest, keyspace)
    assert parse_pool_key(key.text()) == key


def test_mooncakes_form_is_exactly_this() -> None:
    text = "tiny-llama@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "61b1" * 16
    key = parse_pool_key(text)
    assert key == PoolKey("tiny-llama", bytes.fromhex("61b1" * 16))
    assert key.keyspace is None
    assert key.text() == text


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=200))
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        parse_pool_key(text)
    assert "@tp_rank:N@" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ABCD",
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@abc",
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "ab" * 33,
        "m@tp_rank:-1@pcp0@dcp0@pp_rank:0@group:0@ab",
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab#" + "00" * 15,
        "@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab",
        "m" * 5000 + "@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@ab",
    ],
)
def test_near_misses_are_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        parse_pool_key(text)
