"""What is begun, copied and committed together, or read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.base import ReadBatch, WriteBatch

CHUNK_OBJECTS = 8192
GROUP_ITEMS = 1024
GROUP_KEY_CHARS = 3 << 20
"""Key texts of one Begin, at most 4 bytes a character: a frame takes 16 MiB."""


def concatenate(parts: Sequence[Fragments]) -> Fragments:
    """The objects of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.sizes) for part in parts)])
    return Fragments(
        np.concatenate([part.addresses for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate(
            [[0], *(part.offsets[1:] + start for part, start in zip(parts, starts[:-1], strict=True))]
        ),
    )


def groups_of(
    batches: Sequence[WriteBatch], group_bytes: int, group_objects: int = CHUNK_OBJECTS
) -> Iterator[list[int]]:
    """Consecutive batches that are begun and committed together: of so much, or one alone."""
    if len(batches) == 1:  # the usual case
        yield [0]
        return
    group: list[int] = []
    blocks = size_bytes = key_chars = 0
    for i, batch in enumerate(batches):
        mine = batch.source.count, int(batch.lengths.sum()), sum(map(len, batch.item.keys))
        blocks, size_bytes, key_chars = blocks + mine[0], size_bytes + mine[1], key_chars + mine[2]
        full = (
            blocks > group_objects
            or size_bytes > group_bytes
            or key_chars > GROUP_KEY_CHARS
            or len(group) == GROUP_ITEMS
        )
        if group and full:
            yield group
            group = []
            blocks, size_bytes, key_chars = mine
        group.append(i)
    if group:
        yield group


def part_of(batch: ReadBatch, part: slice) -> ReadBatch:
    """Some consecutive objects."""
    count = len(batch.slots)
    whole = part.start == 0 and part.stop == count
    return batch if whole else batch.part(np.arange(part.start, part.stop))
