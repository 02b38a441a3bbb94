"""What the groups of calls share: the pool of an open store, and how Python arguments are checked."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from moonpool.store_client.mooncake.pool import Pool


class Calls:
    """Base of the groups of calls that make up MooncakeDistributedStore."""

    _pool: Pool | None = None
    """None before setup and after close: calls then fail with INVALID_PARAMS."""


def texts(keys: Iterable[str]) -> list[str]:
    """Key texts. Raises TypeError for anything else, as Mooncake does."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys is {type(keys).__name__}; allowed: a list of str")
    found = list(keys)
    for key in found:
        text(key)
    return found


def text(key: str) -> str:
    """A key text. Raises TypeError."""
    if not isinstance(key, str):
        raise TypeError(f"key is {type(key).__name__}; allowed: str")
    return key


def integers(values: Iterable[Any]) -> list[int]:
    """Addresses, sizes, offsets; whatever knows itself as an integer. Raises TypeError."""
    return [operator.index(value) for value in values]


def integer_lists(values: Iterable[Iterable[Any]]) -> list[list[int]]:
    """The same, a list an object."""
    return [integers(part) for part in values]


def same_length(*columns: Sequence[object]) -> bool:
    """Whether there is one entry of each for each object."""
    return len({len(column) for column in columns}) <= 1
