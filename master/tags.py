"""Which blocks a request or a session has written: names that engines put beside their puts, for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from moonpool.schemas.messages import PutAnswer, PutStart, PutStarted

TAGS_MAX = 1 << 16
BYTES_MAX = 64 << 20
"""Of hashes. The tags that were not written to for longest go first."""

TAG_CHARACTERS_MAX = 256

Tag = tuple[str, str, str]
"""(request or session, tenant, name)."""


class Tags:
    """Bounded: an old tag's blocks are found no more, though they may be there."""

    def __init__(self, tags_max: int = TAGS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._tags_max = tags_max
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Tag, dict[bytes, dict[bytes, None]]] = OrderedDict()
        self._bytes = 0
        self._tenants: set[str] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, kind: str, tenant: str, name: str, keyspace: bytes, hashes: list[bytes]) -> None:
        """Somebody writes these blocks in the name of a request or a session."""
        tag = (kind, tenant, name[:TAG_CHARACTERS_MAX])
        self._tenants.add(tenant)  # as many as there are keyspaces at most
        blocks = self._blocks.setdefault(tag, {}).setdefault(keyspace, {})
        for block_hash in hashes:
            if block_hash not in blocks:
                blocks[block_hash] = None
                self._bytes += len(block_hash)
        self._blocks.move_to_end(tag)
        while len(self._blocks) > self._tags_max or self._bytes > self._bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= _size_bytes(oldest)

    def note(self, message: PutStart, reply: PutStarted, tenant: str) -> None:
        """What somebody was told to write, of the first rank: it stands for the block."""
        for item, answers in zip(message.items, reply.answers, strict=True):
            if item.rank or not (item.request_id or item.session_id) or not answers:
                continue
            size = len(item.hashes) // len(answers)
            hashes = [
                item.hashes[index * size : (index + 1) * size]
                for index, answer in enumerate(answers)
                if answer == PutAnswer.GO
            ]
            for kind, name in (("request", item.request_id), ("session", item.session_id)):
                if name and hashes:
                    self.add(kind, tenant, name, item.keyspace, hashes)

    def find(self, kind: str, name: str, sees: Callable[[str], bool]) -> dict[bytes, list[bytes]]:
        """Hashes by keyspace, of all tenants that the asker sees."""
        found: dict[bytes, list[bytes]] = {}
        for tenant in self._tenants:
            if sees(tenant):
                for keyspace, hashes in self._blocks.get((kind, tenant, name), {}).items():
                    found.setdefault(keyspace, []).extend(hashes)
        return found

    def validate(self) -> None:
        """Asserts the bounds."""
        assert self._bytes == sum(map(_size_bytes, self._blocks.values()))
        assert len(self._blocks) <= self._tags_max and self._bytes <= self._bytes_max


def _size_bytes(blocks: dict[bytes, dict[bytes, None]]) -> int:
    return sum(len(block_hash) for hashes in blocks.values() for block_hash in hashes)
