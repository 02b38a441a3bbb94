"""The device seam: copies between the engine's memory (host or GPU) and mapped segments or staging memory.

host.py  plain host memory
cuda.py  a GPU's copy engines
"""

from __future__ import annotations

from typing import Protocol

from moonpool.schemas.packed import U64


class DeviceCopier(Protocol):
    """Moves pieces in batches. Thread-safe. Calls release the interpreter lock."""

    device: bool
    """Whether engine addresses are device addresses: host code must not touch them."""

    def register(self, address: int, size_bytes: int) -> None:
        """Makes host memory (a mapped segment, staging) fast for this device. Once a range; may take seconds."""
        ...

    def unregister(self, address: int) -> None:
        """The reverse, before the range is unmapped."""
        ...

    def to_engine(self, engine: U64, host: U64, sizes: U64) -> None:
        """Copies host pieces to engine pieces and returns when all bytes have landed. Raises TransferFailed."""
        ...

    def from_engine(self, host: U64, engine: U64, sizes: U64) -> None:
        """Copies engine pieces to host pieces and returns when all bytes have landed. Raises TransferFailed."""
        ...
