"""Quotas in bytes: a tenant's own blocks give way first, and others' not at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master.quotas import Quotas, Share, Spending, over, parse_quotas
from moonpool.schemas.errors import ConfigError, InvalidParams

WHOLE = Share(1, 1)


class PaperBooks:
    """Bytes by tenant; `free` of them may be evicted."""

    def __init__(self, stored: dict[str, int], free: dict[str, int]) -> None:
        self.stored, self.free = dict(stored), dict(free)
        self.asked = 0

    def stored_by(self, tenant: str) -> int:
        return self.stored.get(tenant, 0)

    def evict_own(self, tenant: str, want_bytes: int) -> int:
        self.asked += 1
        freed = min(want_bytes, self.free.get(tenant, 0))
        self.free[tenant] = self.free.get(tenant, 0) - freed
        self.stored[tenant] -= freed
        return freed


def test_what_fits_is_stored_and_the_rest_evicts_its_own() -> None:
    books = PaperBooks({"red": 60, "blue": 1000}, {"red": 30, "blue": 1000})
    spending = Spending(Quotas({"red": 100}), WHOLE, books)
    assert [spending.spend("red", 20) for _ in range(5)] == [True, True, True, False, False]
    assert books.stored == {"red": 30, "blue": 1000}
    assert all(spending.spend("blue", 500) for _ in range(9)), "blue has no quota"


def test_what_is_dry_is_asked_once_a_request() -> None:
    books = PaperBooks({"red": 95}, {"red": 3})
    spending = Spending(Quotas({"red": 100}), WHOLE, books)
    assert [spending.spend("red", 10) for _ in range(1000)] == [False] * 1000
    assert books.asked == 1


def test_a_block_larger_than_the_quota_evicts_nothing() -> None:
    books = PaperBooks({"red": 50}, {"red": 50})
    assert not Spending(Quotas({"red": 100}), WHOLE, books).spend("red", 101)
    assert books.stored == {"red": 50}


def test_a_master_of_some_shards_keeps_its_part() -> None:
    books = PaperBooks({"red": 0}, {})
    spending = Spending(Quotas({"red": 100}), Share(1, 4), books)
    assert [spending.spend("red", 10) for _ in range(4)] == [True, True, False, False]
    assert over(Quotas({"red": 100}), Share(1, 4), {"red": 26}.__getitem__) == {"red"}
    assert over(Quotas({"red": 100}), Share(1, 4), {"red": 25}.__getitem__) == set()


@settings(derandomize=True, deadline=None)
@given(
    limit=st.integers(1, 1000),
    stored=st.integers(0, 1500),
    free=st.integers(0, 1500),
    sizes=st.lists(st.integers(1, 200), max_size=30),
)
def test_nobody_goes_over_by_what_is_stored_now(limit: int, stored: int, free: int, sizes: list[int]) -> None:
    books = PaperBooks({"red": stored}, {"red": min(free, stored)})
    spending = Spending(Quotas({"red": limit}), WHOLE, books)
    spent = sum(size for size in sizes if spending.spend("red", size))
    if spent:
        assert books.stored["red"] + spent <= limit


def test_settings_and_bounds() -> None:
    assert parse_quotas("") == {}
    assert parse_quotas(" red=10GB, blue = 5 ,") == {"red": 10 << 30, "blue": 5}
    for bad in ("red", "red=", "=5", "red=much"):
        with pytest.raises(ConfigError, match="quotas"):
            parse_quotas(bad)
    quotas = Quotas()
    assert quotas.set("red", 5) and not quotas.set("red", 5) and quotas
    assert quotas.set("red", 0) and not quotas and quotas.limit("red") == 0
    for tenant, limit in (("", 5), ("x" * 129, 5), ("red", -1), ("red", 1 << 61)):
        with pytest.raises(InvalidParams):
            quotas.set(tenant, limit)
