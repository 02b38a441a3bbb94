"""The records of membership in the metadata store: masters, owners of shards, and what a cluster is made of."""

from __future__ import annotations

import msgspec

from moonpool.master.store.base import Condition
from moonpool.schemas.errors import CorruptStore

CLUSTER_KEY = b"cluster"
MASTERS = b"masters/"
SHARDS = b"shards/"


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True, tag="cluster/1"):
    """cluster: fixed when the first master starts. Where runs begin decides which shard a block is in, so all that
    compute shards must agree on it."""

    shards: int
    first_boundary: int
    stride: int


class MasterRecord(msgspec.Struct, frozen=True, array_like=True, tag="master/1"):
    """masters/<id>, leased: a master that lives. `draining`: it gives its shards away. `http`: of its REST interface,
    http://host:port; empty: others reach none."""

    address: str
    draining: bool = False
    http: str = ""


class OwnerRecord(msgspec.Struct, frozen=True, array_like=True, tag="owner/1"):
    """shards/<n>/owner, leased: who owns the shard, and in which epoch."""

    master: str
    epoch: int


Record = ClusterRecord | MasterRecord | OwnerRecord

_decoder = msgspec.msgpack.Decoder(Record)
encode = msgspec.msgpack.encode
"""A record's value."""


def decode(key: bytes, value: bytes) -> Record:
    """Raises CorruptStore where a value is no record of membership, or one of a later version."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptStore(path="the metadata store", offset=key, reason=str(error)) from None


def master_key(master: str) -> bytes:
    """See MasterRecord."""
    return MASTERS + master.encode()


def owner_key(shard: int) -> bytes:
    """See OwnerRecord."""
    return b"%b%05d/owner" % (SHARDS, shard)


def epoch_key(shard: int) -> bytes:
    """shards/<n>/epoch: the last epoch in which anybody owned the shard, as decimal digits. Never deleted."""
    return b"%b%05d/epoch" % (SHARDS, shard)


def epoch_value(epoch: int) -> bytes:
    """See epoch_key."""
    return b"%d" % epoch


def owns(shard: int, epoch: int) -> Condition:
    """What every write of a shard's owner is conditional on: that nobody has taken the shard over since (I7)."""
    return Condition(epoch_key(shard), value=epoch_value(epoch))
