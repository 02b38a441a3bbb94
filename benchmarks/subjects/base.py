"""The subject seam: a store of objects named by text, that moves them from and to scattered memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Pieces = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
"""Addresses and sizes: one list of fragments an object."""


class Subject(Protocol):
    """One client of one store. Nothing is raised for an object that fails: the counts say it."""

    def register(self, address: int, size_bytes: int) -> None:
        """Memory that objects will be moved from and to."""
        ...

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """Stores objects. How many are stored now."""
        ...

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """Fills the pieces. How many objects came."""
        ...

    def exist(self, keys: Sequence[str]) -> int:
        """How many are there."""
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Forgets them, whatever protects them."""
        ...

    def close(self) -> None:
        """Leaves."""
        ...
