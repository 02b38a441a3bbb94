"""Where the masters are: by the names that were given, or as etcd has them at the moment.

etcd is asked through its JSON gateway: one small read now and then, for which no client library needs to be there. Over plain HTTP: where etcd is closed, name masters instead.
"""

from __future__ import annotations

import http.client
import json
import time
from base64 import b64decode, b64encode
from contextlib import closing

from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError, RpcFailed
from moonpool.schemas.masters import MasterNames

ENDPOINT_TIMEOUT_S = 1.0
"""Of one endpoint, while there are others."""

REPLY_BYTES_MAX = 1 << 20


class Directory:
    """Thread-safe: holds nothing but what the setting says."""

    def __init__(self, masters: str) -> None:
        """Raises InvalidParams."""
        self._where = MasterNames.parse(masters)

    @property
    def names(self) -> list[str]:
        """Masters that are known without asking."""
        return list(self._where.names)

    @property
    def asks(self) -> bool:
        """Whether they have to be asked for."""
        return bool(self._where.etcd)

    def __str__(self) -> str:
        return str(self._where)

    def find(self, deadline_s: float) -> list[str]:
        """Addresses of all masters that live. Raises Unreachable where no endpoint answers."""
        if not self._where.etcd:
            return self.names
        failure: MoonpoolError | None = None
        for endpoint in self._where.etcd:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            alone = len(self._where.etcd) == 1
            try:
                return self._read(endpoint, left_s if alone else min(left_s, ENDPOINT_TIMEOUT_S))
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                failure = RpcFailed(peer=endpoint, reason=f"etcd's masters: {error}")
        raise failure or DeadlineExceeded(peer=str(self), what="etcd's masters", timeout_s=0.0)

    def _read(self, endpoint: str, timeout_s: float) -> list[str]:
        from moonpool.master.membership.records import MASTERS, MasterRecord, decode

        prefix = f"/moonpool/{self._where.cluster}/".encode() + MASTERS
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        body = json.dumps({"key": b64encode(prefix).decode(), "range_end": b64encode(end).decode()})
        with closing(http.client.HTTPConnection(endpoint, timeout=timeout_s)) as connection:
            connection.request("POST", "/v3/kv/range", body)
            response = connection.getresponse()
            said = response.read(REPLY_BYTES_MAX)
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {said[:200]!r}")
        found = [decode(prefix, b64decode(kv["value"])) for kv in json.loads(said).get("kvs", [])]
        return sorted({record.address for record in found if isinstance(record, MasterRecord)})
