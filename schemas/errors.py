"""Every error that Moonpool raises or puts on a wire.

MoonpoolError                         code   Mooncake's number where the meaning is the same
├── InternalError                       -1   a bug of ours; the message says where
├── BadInput
│   ├── InvalidParams                 -600   a field with a value that isn't allowed
│   ├── InvalidKey                    -400   a key text that doesn't parse
│   ├── TooLarge                     -2006   larger than a page, a frame, a batch
│   ├── ConfigError                  -2012   a settings file, variable or flag
│   ├── CorruptStore                 -2018   a file of hard state is damaged in its middle
│   └── KeyspaceUnknown              -2003   register it first
├── Miss
│   ├── NotFound                      -704
│   ├── NotReady                      -703   some rank or ancestor isn't committed yet
│   ├── Gone                          -712   the location doesn't hold this object any more: match again
│   └── ChecksumMismatch              -801
├── Refused
│   ├── AlreadyExists                 -705
│   ├── HasLease                      -706
│   ├── Busy                          -714   somebody else holds the promise to write it
│   ├── NoParent                     -2007   start again from the run's first block
│   ├── NoSpace                       -200
│   ├── QuotaExceeded                -1700
│   ├── Overloaded                   -2009   a bounded queue is full
│   ├── Pending                      -2008   a removal that some node hasn't confirmed
│   ├── Unauthorized                 -2010   no token, or a wrong one
│   ├── Forbidden                    -2020   a good token of a role or tenant that may not do this
│   ├── NotSupported                 -2021   this build can't do that
│   ├── StaleEpoch                   -2013   the sender was deposed
│   ├── StreamGap                    -2014   a report stream must start again
│   ├── WrongShard                   -2011
│   ├── LeaseLost                    -2015   a lease in the metadata store has ended
│   ├── Compacted                    -2016   history that was asked for is gone: read again
│   └── StoreFailed                  -2017   the metadata store refused: nothing was recorded
└── Unreachable
    ├── RpcFailed                     -900   refused, reset, closed
    ├── DeadlineExceeded              -901
    ├── Unavailable                  -2001   the circuit breaker is open: nothing was sent
    ├── ProtocolError                -2002   bytes that aren't a frame of ours
    ├── VersionMismatch               -300
    ├── TransferFailed                -800
    ├── Closed                       -2004   used after close()
    └── UsedAfterFork                -2005
"""

from __future__ import annotations

from typing import Any, ClassVar


class MoonpoolError(Exception):
    """Base of the tree. Carries facts (`error.facts`) and makes its own sentence from them."""

    code: ClassVar[int] = -1
    sentence: ClassVar[str] = "{detail}"

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(facts["wire"] if "wire" in facts else self.sentence.format(**facts))


class InternalError(MoonpoolError):
    """A bug on our side."""

    code = -1


class BadInput(MoonpoolError):
    """The caller can mend it."""


class InvalidParams(BadInput):
    """Facts: field, value, allowed."""

    code = -600
    sentence = "{field} is {value!r}; allowed: {allowed}"


class InvalidKey(BadInput):
    """Facts: key, allowed."""

    code = -400
    sentence = "cannot read the key {key!r}; expected {allowed}"


class TooLarge(BadInput):
    """Facts: what, size_bytes, limit_bytes."""

    code = -2006
    sentence = "{what} is {size_bytes} bytes; the limit is {limit_bytes} bytes"


class ConfigError(BadInput):
    """Facts: source, field, problem."""

    code = -2012
    sentence = "{source}: {field}: {problem}"


class KeyspaceUnknown(BadInput):
    """Facts: keyspace (hex digest)."""

    code = -2003
    sentence = "keyspace {keyspace} isn't known here; call register_keyspace first"


class CorruptStore(BadInput):
    """Facts: path, offset, reason."""

    code = -2018
    sentence = (
        "{path} is damaged at {offset}: {reason}; acknowledged records are lost. "
        "Restore a copy, or move the file away to begin with none"
    )


class Miss(MoonpoolError):
    """The bytes that were asked for aren't there (any more)."""


class NotFound(Miss):
    """Facts: key."""

    code = -704
    sentence = "{key} is not in the pool"


class NotReady(Miss):
    """Facts: key."""

    code = -703
    sentence = "{key} is not wholly written yet"


class Gone(Miss):
    """Facts: key."""

    code = -712
    sentence = "{key} left its place while it was being located or read; match again"


class ChecksumMismatch(Miss):
    """Facts: key, expected, actual."""

    code = -801
    sentence = "{key} has checksum {actual:#x}, its header says {expected:#x}"


class Refused(MoonpoolError):
    """Understood, and not done."""


class AlreadyExists(Refused):
    """Facts: key."""

    code = -705
    sentence = "{key} is in the pool already"


class HasLease(Refused):
    """Facts: key."""

    code = -706
    sentence = "{key} is leased to a reader; try again later or force"


class Busy(Refused):
    """Facts: key."""

    code = -714
    sentence = "{key} is being written by somebody else"


class NoParent(Refused):
    """Facts: key."""

    code = -2007
    sentence = "the parent of {key} is not in the pool; put from the run's first block"


class NoSpace(Refused):
    """Facts: wanted_bytes, where."""

    code = -200
    sentence = "no space for {wanted_bytes} bytes in {where}, and nothing there may be evicted"


class QuotaExceeded(Refused):
    """Facts: tenant, limit_bytes."""

    code = -1700
    sentence = "tenant {tenant} is at its quota of {limit_bytes} bytes"


class Overloaded(Refused):
    """Facts: what, limit."""

    code = -2009
    sentence = "{what} is full ({limit}); try again later"


class Pending(Refused):
    """Facts: what, nodes."""

    code = -2008
    sentence = "{what} is not confirmed by {nodes} yet"


class Unauthorized(Refused):
    """Nobody knows who asks. Facts: detail."""

    code = -2010


class Forbidden(Refused):
    """It is known who asks, and they may not. Facts: detail."""

    code = -2020


class NotSupported(Refused):
    """Facts: what, reason."""

    code = -2021
    sentence = "{what} is not supported: {reason}"


class StaleEpoch(Refused):
    """Facts: epoch, current."""

    code = -2013
    sentence = "epoch {epoch} is older than {current}"


class StreamGap(Refused):
    """Facts: expected, got."""

    code = -2014
    sentence = "report stream: expected message {expected}, got {got}; start a new stream"


class WrongShard(Refused):
    """Facts: shard, epoch (of the cluster map that says so)."""

    code = -2011
    sentence = "shard {shard} is not served here as of epoch {epoch}; ask for the cluster map"


class LeaseLost(Refused):
    """Facts: lease."""

    code = -2015
    sentence = "lease {lease:#x} in the metadata store has ended"


class Compacted(Refused):
    """Facts: revision."""

    code = -2016
    sentence = "the metadata store no longer has its history after revision {revision}; read it again"


class StoreFailed(Refused):
    """Facts: store, reason."""

    code = -2017
    sentence = "the metadata store {store} refused, nothing was recorded: {reason}"


class Unreachable(MoonpoolError):
    """The other side couldn't be asked, or its answer was lost."""


class RpcFailed(Unreachable):
    """Facts: peer, reason."""

    code = -900
    sentence = "{peer}: {reason}"


class DeadlineExceeded(Unreachable):
    """Facts: peer, what, timeout_s."""

    code = -901
    sentence = "{peer} did not answer {what} within {timeout_s:.4g} s"


class Unavailable(Unreachable):
    """Facts: peer, retry_in_s."""

    code = -2001
    sentence = "{peer} failed lately; it is asked again in {retry_in_s:.1f} s"


class ProtocolError(Unreachable):
    """Facts: peer, reason."""

    code = -2002
    sentence = "{peer} broke the protocol: {reason}"


class VersionMismatch(Unreachable):
    """Facts: ours, theirs."""

    code = -300
    sentence = "protocol version {theirs} was offered, this side speaks {ours}; upgrade the older one"


class TransferFailed(Unreachable):
    """Facts: peer, reason."""

    code = -800
    sentence = "transfer with {peer} failed: {reason}"


class Closed(Unreachable):
    """Facts: what."""

    code = -2004
    sentence = "{what} is closed"


class UsedAfterFork(Unreachable):
    """Facts: what, pid."""

    code = -2005
    sentence = "{what} was made in process {pid}; make a new one after a fork"


def _tree(root: type[MoonpoolError]) -> list[type[MoonpoolError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


CODES: dict[int, type[MoonpoolError]] = {
    kind.code: kind for kind in _tree(MoonpoolError) if "code" in vars(kind) and kind is not MoonpoolError
}
"""Every code on the wire and its class: the one table that docs are checked against."""


def from_wire(code: int, message: str) -> MoonpoolError:
    """The error that a peer sent, as the class its code names (unknown codes: MoonpoolError itself)."""
    return CODES.get(code, MoonpoolError)(wire=message)
