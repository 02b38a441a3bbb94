"""Addresses of transfer engines: "rdma://10.0.0.7:15428". The protocol is part of it: both ends must speak it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from moonpool.schemas.errors import InvalidParams
from moonpool.store_client.rpc.address import Address, dial

DIAL_TIMEOUT_S = 1.0

_PATTERN = re.compile(r"([a-z0-9_]{1,32})://((?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """`session`: "host:port", by which the engine knows a peer."""

    protocol: str
    session: str

    @staticmethod
    def parse(text: str) -> EngineAddress:
        """Raises InvalidParams."""
        found = _PATTERN.fullmatch(text)
        if found is None:
            raise InvalidParams(
                field="engine_address", value=text[:300], allowed="protocol://host:port, such as rdma://a:1"
            )
        return EngineAddress(found[1], found[2])

    def __str__(self) -> str:
        return f"{self.protocol}://{self.session}"


def host_towards(session: str, timeout_s: float = DIAL_TIMEOUT_S) -> str:
    """This host's address as that peer sees it. Raises OSError where it can't be reached in time."""
    with dial(Address.parse(session), time.monotonic() + timeout_s) as sock:
        name = str(sock.getsockname()[0])
    return f"[{name}]" if ":" in name else name
