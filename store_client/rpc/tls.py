"""TLS of servers and clients: contexts made of files, made again when the files change."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from moonpool.schemas.errors import ConfigError, MoonpoolError, RpcFailed, Unauthorized
from moonpool.store_client.rpc.secret_files import LOOK_EVERY_S, check_private, state_of

log = logging.getLogger(__name__)

HANDSHAKE_BYTE = 0x16
"""The first byte of every TLS connection; a frame of ours with it would be too long for a Hello."""

_ALERTS_ABOUT_US = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "REVOKED")


class _Contexts:
    """The newest context that the files make. A change that makes none leaves the one before, with one log line."""

    def __init__(self, paths: list[str], make: Callable[[], ssl.SSLContext]) -> None:
        """Raises ConfigError."""
        self._paths = [Path(path) for path in paths if path]
        self._make = make
        self._lock = threading.Lock()
        self._states = self._look()
        self._context = make()
        self._looked_s = time.monotonic()

    def current(self) -> ssl.SSLContext:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = now_s
                states = self._look()
                if states != self._states:
                    self._states = states
                    try:
                        self._context = self._make()
                        log.info("new connections use %s as they are now", ", ".join(map(str, self._paths)))
                    except ConfigError as error:
                        log.error("the certificates before stay in use: %s", error)
            return self._context

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        return [state_of(path) for path in self._paths]


class ServerTls:
    """A server's certificate and, where it has a `ca`, the demand that clients show one that it signed."""

    def __init__(self, cert: str, key: str, ca: str, *, at_once: bool = False) -> None:
        """`at_once`: who shows no certificate is refused by the handshake already, with nobody to ask `check_peer`.
        Raises ConfigError where the files can't be used."""
        self._files = (cert, key, ca)
        self._at_once = at_once
        self._contexts = _Contexts([cert, key, ca], self._make)

    @staticmethod
    def of(cert: str, key: str, ca: str) -> ServerTls | None:
        """None where there is no certificate. Raises ConfigError."""
        if cert:
            return ServerTls(cert, key, ca)
        if key:
            raise ConfigError(source="settings", field="tls_key", problem="is set without tls_cert")
        return None

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._contexts.current()

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """The connection before its handshake. Takes the socket over."""
        return self.context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _make(self) -> ssl.SSLContext:
        cert, key, ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0  # sessions aren't resumed, and an idle connection stays silent
        _load_pair(context, cert, key)
        if ca:
            # Else not required, for those without one are told so in answer to their Hello: `check_peer`.
            context.verify_mode = ssl.CERT_REQUIRED if self._at_once else ssl.CERT_OPTIONAL
            _load_ca(context, ca)
        return context

    def check_peer(self, certificate: object) -> None:
        """Raises Unauthorized where a client has shown none (`certificate`: what the handshake has verified) and must."""
        if self._files[2] and not certificate:
            raise Unauthorized(
                detail="this port wants a certificate of its clients: set tls_cert and tls_key"
            )


class ClientTls:
    """Checks servers against `ca`, and shows them `cert` where there is one."""

    def __init__(self, ca: str, cert: str, key: str, verify_host: bool) -> None:
        """Raises ConfigError where the files can't be used."""
        self._files = (ca, cert, key)
        self._verify_host = verify_host
        self._contexts = _Contexts([ca, cert, key], self._make)

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._contexts.current()

    def wrap(self, sock: socket.socket, host: str, peer: str, deadline_s: float) -> ssl.SSLSocket:
        """The connection after its handshake. Raises RpcFailed, Unauthorized, TimeoutError; the socket is closed
        then."""
        secured: socket.socket = sock
        try:
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            secured = wrapped = self.context().wrap_socket(
                sock, server_hostname=host, do_handshake_on_connect=False
            )
            wrapped.do_handshake()
        except TimeoutError:
            secured.close()
            raise
        except OSError as error:
            secured.close()
            raise explain(error, peer) from error
        return wrapped

    def _make(self) -> ssl.SSLContext:
        ca, cert, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self._verify_host
        _load_ca(context, ca)
        if cert:
            _load_pair(context, cert, key)
        return context


def explain(error: OSError, peer: str) -> MoonpoolError:
    """What a failed handshake means, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RpcFailed(peer=peer, reason=f"its certificate is refused: {error.verify_message}")
    reason = getattr(error, "reason", None) or ""
    if any(alert in reason for alert in _ALERTS_ABOUT_US):
        return Unauthorized(
            detail=f"{peer} refuses this side's certificate ({reason}): set tls_cert, tls_key"
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or reason in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_EOF_WHILE_READING",
    ):
        return RpcFailed(peer=peer, reason="it answers no TLS handshake: is that port one without TLS?")
    return RpcFailed(peer=peer, reason=f"TLS: {reason or error.strerror or error}")


def explain_end(error: OSError, peer: str) -> MoonpoolError:
    """What it means where the handshake went well, and then not even a Hello is answered: only then does a server's
    opinion of our certificate arrive (TLS 1.3), and not always in words."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return explain(error, peer)
    return RpcFailed(peer=peer, reason="it closed the connection; it may not trust this side's certificate")


def cut(sock: socket.socket) -> None:
    """Ends a connection that another thread may be reading. SSLSocket's own shutdown would go on in clear text."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    if not key:
        raise ConfigError(source="settings", field="tls_key", problem="is empty, and tls_cert isn't")
    check_private(Path(key))
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        problem = f"makes no pair with {key}: {getattr(error, 'reason', None) or error}"
        raise ConfigError(source=cert, field="tls_cert", problem=problem) from None


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        problem = f"can't be used: {getattr(error, 'reason', None) or error.strerror}"
        raise ConfigError(source=ca, field="tls_ca", problem=problem) from None


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise ValueError("it is encrypted, which a server can't open by itself")
