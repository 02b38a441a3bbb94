"""What a client shows to servers: its token and its certificate, read again for each connection."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import msgspec

from moonpool.schemas.config import ClientSettings, NodeSettings
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.messages import Hello
from moonpool.store_client.rpc.address import Address
from moonpool.store_client.rpc.secret_files import read_private
from moonpool.store_client.rpc.tls import ClientTls

log = logging.getLogger(__name__)

TOKEN_BYTES_MAX = 1024


class Credentials:
    """Shared by all connections of a process. Thread-safe. Its repr shows nothing."""

    def __init__(self, token: str = "", token_file: str = "", tls: ClientTls | None = None) -> None:
        """Raises ConfigError where the token's file can't be used."""
        self.tls = tls
        self._token = token
        self._file = Path(token_file) if token_file else None
        if self._file is not None:
            self._token = _read(self._file)

    @property
    def bare(self) -> bool:
        """Whether there is nothing to be shown, and nothing to be secured."""
        return self.tls is None and not self._token

    @staticmethod
    def of(settings: ClientSettings | NodeSettings) -> Credentials:
        """Raises ConfigError for settings that contradict each other and for files that can't be used."""
        if settings.token and settings.token_file:
            raise ConfigError(source="settings", field="token_file", problem="is set, and token as well")
        tls = None
        if settings.tls_ca:
            tls = ClientTls(settings.tls_ca, settings.tls_cert, settings.tls_key, settings.tls_verify_host)
        elif settings.tls_cert:
            problem = "is set without tls_ca, which servers' certificates are checked against"
            raise ConfigError(source="settings", field="tls_cert", problem=problem)
        return Credentials(settings.token, settings.token_file, tls)

    def sign(self, hello: Hello) -> Hello:
        """The same Hello with the token in it."""
        if self._file is not None:
            try:
                self._token = _read(self._file)
            except ConfigError as error:
                log.warning("the token before stays in use: %s", error)
        return msgspec.structs.replace(hello, token=self._token) if self._token else hello

    def secure(self, sock: socket.socket, address: Address, deadline_s: float) -> socket.socket:
        """The connection to speak over, after the TLS handshake where there is one. Raises MoonpoolError, OSError,
        TimeoutError; the socket is closed then."""
        if self.tls is None or address.path:
            return sock
        return self.tls.wrap(sock, address.host, f"{address.host}:{address.port}", deadline_s)


def _read(path: Path) -> str:
    """Raises ConfigError, which never shows what the file holds."""
    try:
        token = read_private(path, TOKEN_BYTES_MAX).decode().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ConfigError(source=str(path), field="token_file", problem="holds no token")
    return token


NO_CREDENTIALS = Credentials()
