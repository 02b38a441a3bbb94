"""PoolKey: (keyspace, rank, block hash), and its two text forms.

Mooncake's:  model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@<hex>
ours:        the same with `#<keyspace digest>` after it, which round-trips
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.keyspace import DIGEST_BYTES

_TEXT = re.compile(
    r"(?P<model>.+)@tp_rank:(?P<tp>\d{1,5})@pcp(?P<pcp>\d{1,5})@dcp(?P<dcp>\d{1,5})"
    r"@pp_rank:(?P<pp>\d{1,5})@group:(?P<group>\d{1,5})(?P<rest>(?:@[a-z_]+:[^@#]*)*)"
    r"@(?P<hash>(?:[0-9a-f]{2}){1,32})(?:#(?P<keyspace>[0-9a-f]{32}))?"
)
_FORM = "model@tp_rank:N@pcpN@dcpN@pp_rank:N@group:N@<hex hash>[#<32 hex digits of the keyspace>]"


@dataclass(frozen=True, slots=True)
class PoolKey:
    """One rank's shard of one block. `keyspace` is None where the text was Mooncake's, which names no identity."""

    model: str
    block_hash: bytes
    tp_rank: int = 0
    pcp_rank: int = 0
    dcp_rank: int = 0
    pp_rank: int = 0
    group: int = 0
    rest: str = ""
    keyspace: bytes | None = None

    def text(self) -> str:
        """The key as text: Mooncake's form, with our suffix where the keyspace is known."""
        stem = (
            f"{self.model}@tp_rank:{self.tp_rank}@pcp{self.pcp_rank}@dcp{self.dcp_rank}"
            f"@pp_rank:{self.pp_rank}@group:{self.group}{self.rest}@{self.block_hash.hex()}"
        )
        return stem if self.keyspace is None else f"{stem}#{self.keyspace.hex()}"


def parse_pool_key(text: str) -> PoolKey:
    """The key that `text` spells. Raises InvalidKey for anything else."""
    found = _TEXT.fullmatch(text)
    if found is None or len(text) > 4096:
        raise InvalidKey(key=text[:200], allowed=_FORM)
    keyspace = found["keyspace"]
    assert keyspace is None or len(keyspace) == 2 * DIGEST_BYTES
    return PoolKey(
        model=found["model"],
        block_hash=bytes.fromhex(found["hash"]),
        tp_rank=int(found["tp"]),
        pcp_rank=int(found["pcp"]),
        dcp_rank=int(found["dcp"]),
        pp_rank=int(found["pp"]),
        group=int(found["group"]),
        rest=found["rest"],
        keyspace=None if keyspace is None else bytes.fromhex(keyspace),
    )
