"""What every store refuses, so that none takes what another can't: too much at once, or a key named twice."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.master.store.base import Condition, DeletePrefix, Put, Write
from moonpool.schemas.errors import InvalidParams, TooLarge

OPS_MAX = 128
"""Writes, and conditions, in one commit: etcd's own default limit."""

COMMIT_BYTES_MAX = 1 << 20
"""Keys and values of one commit; etcd refuses a request of 1.5 MiB."""

KEY_BYTES_MAX = 1024


def check_commit(writes: Sequence[Write], conditions: Sequence[Condition]) -> None:
    """Raises InvalidParams, TooLarge."""
    for name, ops in (("writes", writes), ("conditions", conditions)):
        if len(ops) > OPS_MAX:
            raise InvalidParams(field=name, value=len(ops), allowed=f"at most {OPS_MAX} a commit")
    keys = [write.key for write in writes if not isinstance(write, DeletePrefix)]
    prefixes = [write.prefix for write in writes if isinstance(write, DeletePrefix)]
    for key in [*keys, *prefixes, *(condition.key for condition in conditions)]:
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise InvalidParams(field="key", value=key[:80], allowed=f"1 to {KEY_BYTES_MAX} bytes")
    if len(set(keys)) < len(keys) or any(key.startswith(tuple(prefixes)) for key in keys):
        raise InvalidParams(field="writes", value=keys[:4], allowed="each key once in a commit")
    size = sum(len(write.key) + len(write.value) for write in writes if isinstance(write, Put))
    if size > COMMIT_BYTES_MAX:
        raise TooLarge(what="a commit", size_bytes=size, limit_bytes=COMMIT_BYTES_MAX)


def check_records_max(records_max: int) -> None:
    """Raises InvalidParams."""
    if records_max < 1:
        raise InvalidParams(field="records_max", value=records_max, allowed="1 or more")


def check_ttl(ttl_s: float) -> None:
    """Raises InvalidParams."""
    if not 0 < ttl_s <= 86_400:
        raise InvalidParams(field="ttl_s", value=ttl_s, allowed="more than 0, at most a day")


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`; b"" where there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b""
