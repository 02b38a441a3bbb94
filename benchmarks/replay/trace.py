"""Request traces in Mooncake's JSONL format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from moonpool.schemas.errors import ConfigError

REQUEST_BLOCKS_MAX = 1_000_000


class Request(msgspec.Struct, frozen=True):
    """One request. `timestamp` in ms; lengths in tokens. `hash_ids`: one id a block; equal ids mean an equal
    prefix up to and including that block."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


Trace = Sequence[Request]

_decode = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode


def read_trace(path: Path) -> list[Request]:
    """All requests in order of arrival. Raises ConfigError that names the line."""
    requests: list[Request] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_request(line, f"{path}:{number}"))
    except OSError as error:
        raise ConfigError(source=str(path), field="trace", problem=error.strerror or str(error)) from error
    if not requests:
        raise ConfigError(source=str(path), field="trace", problem="there is no request in it")
    return sorted(requests, key=lambda request: request.timestamp)


def _request(line: bytes, source: str) -> Request:
    try:
        request = _decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(source=source, field="request", problem=str(error)) from error
    if len(request.hash_ids) > REQUEST_BLOCKS_MAX:
        raise ConfigError(source=source, field="hash_ids", problem=f"more than {REQUEST_BLOCKS_MAX} blocks")
    return request


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """One JSON object a line."""
    with path.open("wb") as out:
        for request in requests:
            out.write(_encode(request) + b"\n")
