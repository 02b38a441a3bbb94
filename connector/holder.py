"""vLLM's block pool as a BlockHolder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class BlockPoolHolder:
    """References on blocks of the GPU block pool, which vLLM binds after it has made the connector."""

    def __init__(self) -> None:
        self._pool: Any = None

    def bind(self, block_pool: Any) -> None:
        """vLLM's BlockPool."""
        self._pool = block_pool

    @property
    def bound(self) -> bool:
        """Whether blocks can be held at all; nothing is saved before."""
        return self._pool is not None

    @property
    def null_block(self) -> int:
        """See BlockHolder."""
        return int(self._pool.null_block.block_id) if self.bound else 0

    @property
    def capacity(self) -> int:
        """See BlockHolder."""
        return int(self._pool.num_gpu_blocks) if self.bound else 0

    def holds_state(self, block_id: int, tokens: int) -> bool:
        """See BlockHolder. vLLM names a block by its hash only where it holds what the hash says."""
        block = self._pool.blocks[block_id]
        return block.block_hash is not None and getattr(block, "block_hash_num_tokens", tokens) in (
            tokens,
            None,
        )

    def hold(self, block_ids: Sequence[int]) -> None:
        """See BlockHolder."""
        self._pool.touch([self._pool.blocks[block] for block in block_ids])

    def release(self, block_ids: Sequence[int]) -> None:
        """See BlockHolder."""
        self._pool.free_blocks([self._pool.blocks[block] for block in block_ids])
