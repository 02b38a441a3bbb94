"""Whom a server lets in, and which servers may listen beyond this host at all."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

from moonpool.schemas.access import Identity, Role, token_digest
from moonpool.schemas.config import MasterSettings, NodeSettings
from moonpool.schemas.errors import ConfigError, Forbidden, Unauthorized
from moonpool.schemas.messages import Hello, Message
from moonpool.store_client.rpc.address import resolve
from moonpool.store_client.rpc.near import comes_near
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tokens import TokenFile

NOBODY = Identity(tenant="", role=Role.READER)
"""Of a connection that has not said Hello yet."""

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(slots=True)
class Admission:
    """One connection's leave to be here. Holds a digest of its token, never the token."""

    identity: Identity
    digest: bytes
    version: int


class Access:
    """One server's tokens. Without any, everybody is an admin, of the tenant that they name. Thread-safe."""

    def __init__(self, tokens: TokenFile | None = None) -> None:
        self._tokens = tokens

    def admit(self, hello: Hello) -> Admission:
        """Raises Unauthorized, which says nothing of the token."""
        if self._tokens is None:
            return Admission(Identity(hello.tenant, Role.ADMIN), b"", 0)
        if not hello.token:
            raise Unauthorized(detail="this server wants a token: set token, token_file or MOONPOOL_TOKEN")
        version = self._tokens.refresh()
        digest = token_digest(hello.token)
        identity = self._tokens.find(digest)
        if identity is None:
            raise Unauthorized(detail="this server doesn't know the token")
        return Admission(identity, digest, version)

    def certain_until_s(self) -> float:
        """Until when (monotonic) no token is withdrawn: what `holds` says after this was asked."""
        return float("inf") if self._tokens is None else self._tokens.looks_next_s()

    def holds(self, admission: Admission) -> bool:
        """Whether the token still stands for the same identity. Cheap while the tokens file doesn't change."""
        if self._tokens is None or self._tokens.refresh() == admission.version:
            return True
        admission.version = self._tokens.version
        return self._tokens.find(admission.digest) == admission.identity


class Visitor:
    """One connection of an RPC server: nobody, until it has said who it is."""

    def __init__(self, access: Access) -> None:
        self.identity = NOBODY
        self._access = access
        self._admission: Admission | None = None
        self._refusal: Unauthorized | None = None
        self.allowed: set[type[Message]] = set()
        """Requests that its role was found to allow."""

    def look_at(self, transport: asyncio.BaseTransport, tls: ServerTls | None) -> None:
        """What the connection itself says: the user behind a Unix socket, a certificate. Kept for `admit` to tell."""
        sock = transport.get_extra_info("socket")
        try:
            if sock.family == socket.AF_UNIX:
                if not comes_near(sock):
                    check_socket_peer(sock)
            elif tls is not None:
                tls.check_peer(transport.get_extra_info("peercert"))
        except Unauthorized as error:
            self._refusal = error

    def admit(self, hello: Hello) -> Unauthorized | None:
        """Lets it in, or says why not."""
        try:
            if self._refusal is None:
                self._admission = self._access.admit(hello)
                self.identity = self._admission.identity
                self.allowed.clear()
        except Unauthorized as error:
            self._refusal = error
        return self._refusal

    def may_stay(self) -> bool:
        """False once the token that let it in was withdrawn."""
        return self._admission is None or self._access.holds(self._admission)

    def check(self, request: type[Message]) -> None:
        """Raises Forbidden."""
        check_role(self.identity, request)
        self.allowed.add(request)


WITHDRAWN = "the token of this connection was withdrawn"


def check_role(identity: Identity, request: type[Message]) -> None:
    """Raises Forbidden where the role may not send such a request."""
    if not identity.may(request):
        raise forbidden(identity, request)


def forbidden(identity: Identity, request: type[Message]) -> Forbidden:
    """What a role is told that may not send such a request."""
    return Forbidden(detail=f"a token with the role {identity.role} may not send {request.__name__}")


def check_socket_peer(sock: Any) -> None:
    """Of a Unix socket: raises Unauthorized unless root or this process's own user is at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid not in (0, os.geteuid()):
        raise Unauthorized(detail=f"this socket serves user {os.geteuid()} and root, not user {uid}")


def check_guarded(host: str, settings: MasterSettings | NodeSettings, field: str = "host") -> None:
    """Raises ConfigError where a server would listen beyond this host for everybody who comes. `field`: the setting
    that says so."""
    guarded = settings.tokens_file or (settings.tls_cert and settings.tls_ca)
    if guarded or settings.insecure or is_loopback(host):
        return
    problem = (
        f"{host or 'every address'} is reached from other hosts, and nothing says who may come in; "
        "set tokens_file, or tls_cert with tls_key and tls_ca (docs/security.md), "
        "or insecure = true on a network where everybody may read and remove all blocks"
    )
    raise ConfigError(source="settings", field=field, problem=problem)


def check_bare(host: str, settings: MasterSettings) -> None:
    """The same of KV events, whose readers show neither a token nor a certificate, and see the blocks of all
    tenants. Where those are asked for elsewhere, loopback is no exception. With CURVE keys they show one. Raises
    ConfigError."""
    if bool(settings.events_key) is not bool(settings.events_clients):
        field = "events_clients" if settings.events_key else "events_key"
        problem = "is missing: events_key and events_clients go together (docs/security.md)"
        raise ConfigError(source="settings", field=field, problem=problem)
    if settings.events_key or settings.insecure:
        return
    if settings.tokens_file or settings.tls_ca:
        why = "KV events name the blocks of all tenants to whoever reaches their port, and ask for no token"
    elif not is_loopback(host):
        why = f"{host or 'every address'} is reached from other hosts, and KV events know no tokens"
    else:
        return
    problem = (
        f"{why}; set events_key and events_clients (docs/security.md), events_port = 0, "
        "or insecure = true where all of them may know"
    )
    raise ConfigError(source="settings", field="events_host", problem=problem)


def is_loopback(host: str) -> bool:
    """Whether only this host reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = resolve(host, None) if host else []
    except OSError:
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(target[0]).partition("%")[0]).is_loopback for *_, target in found
    )
