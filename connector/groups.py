"""KV cache groups, and the longest prefix that all of them can serve.

vLLM keeps one block table a group. A full-attention layer needs every block before the next token; a sliding
window or a chunk needs only the last few, a state the one snapshot where the prefix ends, which is why their keyspaces
are flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import lcm

import numpy as np

from moonpool.schemas.packed import I64


class GroupKind(StrEnum):
    """What the layers of a group look back at."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of layers that share a block table.

    `index`: its place in vLLM's block tables. `block_tokens`: tokens that one block covers over all
    context-parallel ranks. `span_tokens`: WINDOW: how many tokens before the next one must be kept;
    CHUNK: the chunk's length.
    """

    index: int
    kind: GroupKind
    block_tokens: int
    span_tokens: int = 0

    @property
    def chained(self) -> bool:
        """Whether a block counts only if every block before it is there."""
        return self.kind is GroupKind.FULL

    def first_needed(self, tokens: int) -> int:
        """Position of the first block that must be there to go on after `tokens` tokens."""
        if self.kind is GroupKind.WINDOW:
            return max(0, tokens - self.span_tokens) // self.block_tokens
        if self.kind is GroupKind.CHUNK:
            return tokens // self.span_tokens * self.span_tokens // self.block_tokens
        if self.kind is GroupKind.STATE:
            return max(0, tokens // self.block_tokens - 1)
        return 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """All groups of a model that the pool serves.

    `hash_tokens`: tokens a block hash covers. `proof_blocks`: how many blocks past a hit must match too
    (1 where a draft model's KV at a block's end depends on the token after it).
    """

    groups: tuple[Group, ...]
    hash_tokens: int
    proof_blocks: int = 0

    @property
    def alignment_tokens(self) -> int:
        """A hit ends on a multiple of this, so that it ends on a block boundary of every group."""
        return lcm(*(group.block_tokens for group in self.groups))

    @property
    def fails_by_block(self) -> bool:
        """Whether a request goes on from its first block that wasn't loaded. Else it starts again: vLLM would go on
        from there too, but a window that ends there was never loaded, and with several groups it can't tell whose
        block an id names."""
        return len(self.groups) == 1 and self.groups[0].chained

    def chain(self, group: Group, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """The group's block hashes: a coarser block is named by the last of the hashes it covers."""
        scale = group.block_tokens // self.hash_tokens
        return hashes if scale == 1 else hashes[scale - 1 :: scale]

    def hash_count(self, group: Group, blocks: int) -> int:
        """How many block hashes cover the group's first `blocks` blocks."""
        return blocks * (group.block_tokens // self.hash_tokens)

    def longest_hit(self, ready: Sequence[int | Sequence[bool]], tokens: int) -> int:
        """Tokens of the longest prefix, below `tokens`, that every group can serve.

        `ready`, one a group: for a chained group the ready blocks from position 0, else one bit a block. A
        request whose `tokens` are all there still has to compute the last one, or there is nothing to sample.
        """
        limit = tokens if self.fails_by_block else tokens - 1
        missing: list[tuple[Group, I64]] = []
        for group, found in zip(self.groups, ready, strict=True):
            if isinstance(found, int):
                limit = min(limit, max(0, found - self.proof_blocks) * group.block_tokens)
            else:
                limit = min(limit, (len(found) - self._proof_of(group)) * group.block_tokens)
                gaps = np.zeros(len(found) + 1, dtype=np.int64)
                np.cumsum(~np.asarray(found, dtype=np.bool_), out=gaps[1:])
                missing.append((group, gaps))
        step = self.alignment_tokens
        for length in range(max(0, limit) // step * step, 0, -step):
            if all(self._complete(group, gaps, length) for group, gaps in missing):
                return min(length, tokens - 1)
        return 0

    def _complete(self, group: Group, gaps: I64, tokens: int) -> bool:
        """Whether no block that the group needs after `tokens` tokens is missing; `gaps` counts them up."""
        end = tokens // group.block_tokens + self._proof_of(group)
        return bool(gaps[end] == gaps[group.first_needed(tokens)])

    def _proof_of(self, group: Group) -> int:
        """A state is of the model alone, and the snapshot after the hit's need not exist."""
        return 0 if group.kind is GroupKind.STATE else self.proof_blocks
