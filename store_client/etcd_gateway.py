"""Small reads from etcd through its JSON gateway: no client library needs to be there."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from moonpool.schemas.config import ClientSettings, NodeSettings
from moonpool.schemas.errors import ConfigError, DeadlineExceeded, MoonpoolError, RpcFailed, Unauthorized
from moonpool.store_client.rpc.secret_files import read_private
from moonpool.store_client.rpc.tls import ClientTls

ENDPOINT_TIMEOUT_S = 1.0
"""Of one endpoint, while there are others."""

REPLY_BYTES_MAX = 1 << 20
PASSWORD_BYTES_MAX = 1024
SIGN_IN = "auth/authenticate"
TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")


class EtcdLogin:
    """Who we are to etcd, and how its certificate is checked. Its repr shows no secret."""

    def __init__(self, user: str = "", password_file: str = "", tls: ClientTls | None = None) -> None:
        self.user = user
        self.tls = tls
        self._password_file = password_file

    @staticmethod
    def of(settings: ClientSettings | NodeSettings) -> EtcdLogin:
        """Raises ConfigError for settings that contradict each other and for files that can't be used."""
        tls = None
        if settings.etcd_ca:
            tls = ClientTls(settings.etcd_ca, settings.etcd_cert, settings.etcd_key, verify_host=True)
        elif settings.etcd_cert:
            problem = "is set without etcd_ca, which etcd's certificates are checked against"
            raise ConfigError(source="settings", field="etcd_cert", problem=problem)
        login = EtcdLogin(settings.etcd_user, settings.etcd_password_file, tls)
        if login.user:
            login.password()
        return login

    def password(self) -> str:
        """As the file has it now. Raises ConfigError."""
        if not self._password_file:
            problem = f"must name the file with the password of {self.user!r}"
            raise ConfigError(source="settings", field="etcd_password_file", problem=problem)
        return read_private(Path(self._password_file), PASSWORD_BYTES_MAX).decode().rstrip("\n")


class EtcdGateway:
    """Thread-safe. The endpoint that answered last is asked first."""

    def __init__(self, endpoints: Sequence[str], login: EtcdLogin) -> None:
        self._endpoints = list(endpoints)
        self._login = login
        self._lock = threading.Lock()
        self._token = ""

    def read(self, prefix: bytes, deadline_s: float) -> list[bytes]:
        """The values of all keys that begin so. Raises Unauthorized (etcd knows no such user, or forbids it to read
        this), RpcFailed and DeadlineExceeded where no endpoint answers."""
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        body = {"key": b64encode(prefix).decode(), "range_end": b64encode(end).decode()}
        failure: MoonpoolError | None = None
        for endpoint in list(self._endpoints):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            share_s = left_s if len(self._endpoints) == 1 else min(left_s, ENDPOINT_TIMEOUT_S)
            try:
                found = self._ask_signed_in(endpoint, body, time.monotonic() + share_s)
                values = [b64decode(kv["value"]) for kv in found.get("kvs", [])]
            except (RpcFailed, ConfigError) as error:
                failure = RpcFailed(peer=endpoint, reason=str(error))
                continue
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                failure = RpcFailed(peer=endpoint, reason=f"etcd's masters: {error}")
                continue
            self._prefer(endpoint)
            return values
        what = f"etcd at {';'.join(self._endpoints)}"
        raise failure or DeadlineExceeded(peer=what, what="the masters", timeout_s=0.0)

    def _prefer(self, endpoint: str) -> None:
        with self._lock:
            if self._endpoints[0] != endpoint:
                self._endpoints = [endpoint, *(one for one in self._endpoints if one != endpoint)]

    def _ask_signed_in(self, endpoint: str, body: dict[str, str], deadline_s: float) -> dict[str, Any]:
        """A range. Signs in where there is a user and no token, or one that etcd has forgotten."""
        for again in (True, False):
            if self._login.user and not self._token:
                credentials = {"name": self._login.user, "password": self._login.password()}
                status, said = self._post(endpoint, SIGN_IN, credentials, deadline_s)
                self._check(endpoint, status, said)
                self._token = str(said["token"])
            status, said = self._post(endpoint, "kv/range", body, deadline_s)
            if again and self._login.user and str(said.get("error", "")).endswith(TOKEN_REFUSED):
                self._token = ""
                continue
            self._check(endpoint, status, said)
            return said
        raise AssertionError("unreachable")

    def _check(self, endpoint: str, status: int, said: dict[str, Any]) -> None:
        if status == http.client.OK:
            return
        reason = str(said.get("error", ""))[:200] or f"HTTP {status}"
        if status in (http.client.BAD_REQUEST, http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise Unauthorized(
                detail=f"etcd at {endpoint} refuses {self._login.user or 'nobody'!r}: {reason}"
            )
        raise RpcFailed(peer=endpoint, reason=reason)

    def _post(
        self, endpoint: str, path: str, body: dict[str, str], deadline_s: float
    ) -> tuple[int, dict[str, Any]]:
        timeout_s = max(0.001, deadline_s - time.monotonic())
        connection: http.client.HTTPConnection
        if self._login.tls is not None:
            context: ssl.SSLContext = self._login.tls.context()
            connection = http.client.HTTPSConnection(endpoint, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(endpoint, timeout=timeout_s)
        with closing(connection):
            headers = {"Authorization": self._token} if self._token and path != SIGN_IN else {}
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            said = json.loads(response.read(REPLY_BYTES_MAX))
        if not isinstance(said, dict):
            raise TypeError("no JSON object")
        return response.status, said
