"""The same tests ask Mooncake's own master and Moonpool."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from support.mooncake_pools import Memory, Pool

KINDS = [pytest.param("mooncake", marks=pytest.mark.mooncake), "moonpool"]
_names = itertools.count()


@pytest.fixture(scope="session", params=KINDS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """For tests that leave the master alone."""
    with Pool(request.param) as pool:
        yield pool


@pytest.fixture(scope="session")
def store(pool: Pool) -> Any:
    """One store for all such tests: a start takes a second. Tests use keys of their own."""
    return pool.store()


@pytest.fixture(params=KINDS)
def own_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """For tests that kill, freeze and fill."""
    with Pool(request.param) as pool:
        yield pool


@pytest.fixture
def key() -> str:
    """A name that no other test uses: a prefix for more of them."""
    return f"test-{next(_names)}"


@pytest.fixture
def memory(store: Any) -> Iterator[Memory]:
    """1 MiB: tests put from its lower half and get into its upper half."""
    memory = Memory(1 << 20)
    assert store.register_buffer(memory.address, 1 << 20) == 0
    yield memory
    assert store.unregister_buffer(memory.address) == 0
