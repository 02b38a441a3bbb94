"""Who may use the REST interface: a bearer token's role, or anybody where a master on loopback has no tokens."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from moonpool.schemas.access import Authenticator, Identity, Role
from moonpool.schemas.errors import Forbidden, Unauthorized
from moonpool.schemas.keyspace import DEFAULT_TENANT

READERS = (Role.MONITOR, Role.ADMIN)
TENANTS = (Role.READER, Role.CLIENT, Role.ADMIN)
"""Who may look at blocks: but for an admin, those of its own tenant."""

BEARER = HTTPBearer(
    auto_error=False, description="A token of the master's tokens_file. None is needed where that is not set."
)


ANYBODY = Identity(DEFAULT_TENANT, Role.ADMIN, "anybody")
"""Whoever asks a master on loopback that has no tokens."""


def is_loopback(host: str) -> bool:
    """Whether only this machine's processes reach a server that listens on `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _named_by_number(host_header: str) -> bool:
    host = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return True


def identify(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> Identity:
    """Who asks. Raises Unauthorized.

    Without tokens everything is allowed on loopback, but only to requests that name the server by an address: a web
    page may have its own name resolve to 127.0.0.1, and would else speak to us from the operator's browser.
    """
    tokens: Authenticator | None = request.app.state.authenticator
    if tokens is None:
        if request.app.state.loopback and not _named_by_number(request.headers.get("host", "")):
            raise Forbidden(detail="without tokens this server must be called 127.0.0.1 or localhost")
        return ANYBODY
    found = tokens.authenticate(bearer.credentials) if bearer is not None else None
    if found is None:
        raise Unauthorized(detail="a bearer token is needed (Authorization: Bearer ...)")
    return found


def reader(identity: Annotated[Identity, Depends(identify)]) -> Identity:
    """Raises Forbidden where the token may not read."""
    if identity.role not in READERS:
        raise Forbidden(detail=f"role {identity.role} may not read here; needed: {' or '.join(READERS)}")
    return identity


def admin(identity: Annotated[Identity, Depends(identify)]) -> Identity:
    """Raises Forbidden where the token may not change anything."""
    if identity.role is not Role.ADMIN:
        raise Forbidden(detail=f"role {identity.role} may change nothing here; needed: admin")
    return identity


def tenant(identity: Annotated[Identity, Depends(identify)]) -> Identity:
    """Raises Forbidden where the token may look at no block."""
    if identity.role not in TENANTS:
        raise Forbidden(
            detail=f"role {identity.role} may look at no block; needed: reader or client of its tenant, or admin"
        )
    return identity


def anybody(identity: Annotated[Identity, Depends(identify)]) -> Identity:
    """Raises Forbidden where the token is of no use here."""
    if identity.role not in READERS + TENANTS:
        raise Forbidden(detail=f"role {identity.role} may not read here")
    return identity


Tenant = Annotated[Identity, Depends(tenant)]
Known = Annotated[Identity, Depends(anybody)]
Reader = Annotated[Identity, Depends(reader)]
Admin = Annotated[Identity, Depends(admin)]
