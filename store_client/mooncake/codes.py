"""Numbers that Mooncake's calls return: 0, a count or a size where it went well, else one of its negative codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from moonpool.schemas.errors import (
    BadInput,
    ChecksumMismatch,
    Gone,
    InternalError,
    InvalidParams,
    MoonpoolError,
    NoSpace,
    NotFound,
    QuotaExceeded,
    TransferFailed,
    UsedAfterFork,
)
from moonpool.schemas.messages import Status

OK = 0
INTERNAL_ERROR = InternalError.code
INVALID_PARAMS = InvalidParams.code
NOT_FOUND = NotFound.code
ALREADY_EXISTS = -705
OBJECT_HAS_LEASE = -706

_CODES = {
    Status.OK: OK,
    Status.MISSING: NOT_FOUND,
    Status.NO_SPACE: NoSpace.code,
    Status.QUOTA: QuotaExceeded.code,
    Status.TOO_LARGE: NoSpace.code,
    Status.CORRUPT: ChecksumMismatch.code,
    Status.FAILED: TransferFailed.code,
    Status.GONE: Gone.code,
}

Result = TypeVar("Result")


def put_code(status: Status) -> int:
    """Of a put. A key that is taken, or that somebody else is writing, counts as stored: objects don't change."""
    return OK if status in (Status.EXISTS, Status.BUSY) else _CODES.get(status, INTERNAL_ERROR)


def get_code(status: Status, size_bytes: int) -> int:
    """Of a get: the object's size, or why it wasn't read. Memory that is too small is the caller's mistake."""
    if status == Status.OK:
        return size_bytes
    return INVALID_PARAMS if status == Status.TOO_LARGE else _CODES.get(status, INTERNAL_ERROR)


def error_code(error: MoonpoolError) -> int:
    """Of a call that was refused or not answered."""
    return INVALID_PARAMS if isinstance(error, BadInput) else error.code


def each(count: int, call: Callable[[], Sequence[Result]], failure: Callable[[int], Result]) -> list[Result]:
    """The result of `call`; where it raises, the same failure for each of `count` objects.

    Use in a forked child isn't an outcome of the pool but a mistake in the program: that one is raised.
    """
    try:
        return list(call())
    except UsedAfterFork:
        raise
    except MoonpoolError as error:
        return [failure(error_code(error))] * count
