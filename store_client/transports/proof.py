"""What headers that came behind payloads say of them (I3), and what checksums do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.header import Headers, holds, keyspace_word
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client.checksums import mismatches
from moonpool.store_client.transports.base import ReadBatch

_OK = np.uint8(Status.OK)


def sent_of(batch: ReadBatch, statuses: U8) -> tuple[NDArray[np.intp], ReadBatch]:
    """Which objects came, and the batch without all others."""
    sent = np.flatnonzero(statuses == _OK)
    return sent, batch if len(sent) == len(statuses) else batch.part(sent)


def judge(statuses: U8, sent: NDArray[np.intp], there: ReadBatch, headers: Headers) -> None:
    """Takes OK from those objects whose header, one each of `there`, names anything else than was asked for, or whose
    bytes, which have been copied, have another checksum."""
    word = keyspace_word(there.keyspace)
    right = holds(headers, there.generations, word, there.rank, there.hashes, there.lengths)
    if not right.all():
        statuses[sent[~right]] = Status.MISSING
    if there.verify:
        wrong = mismatches(there.into, np.where(right, headers["checksum"], np.uint64(0)))
        statuses[sent[wrong]] = Status.CORRUPT
