"""Who may do what: roles, the one table of what each role may ask, and tokens that stand for an identity."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from moonpool.schemas import messages as m
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.keyspace import DEFAULT_TENANT

TOKENS_MAX = 1024
TOKEN_CHARACTERS = (16, 1024)
"""The shortest is still too long to be guessed; the longest fits the first frame of a connection."""
TENANT_CHARACTERS_MAX = 128

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Role(StrEnum):
    """What a token is for."""

    READER = "reader"  # looks up and loads blocks of its tenant
    CLIENT = "client"  # an engine: saves and removes too
    MONITOR = "monitor"  # looks at nodes, settings and counters of the whole cluster, at no block
    NODE = "node"  # contributes memory; holds blocks of all tenants
    ADMIN = "admin"  # everything, of every tenant


_READERS = frozenset({Role.READER, Role.CLIENT})
_CLIENTS = frozenset({Role.CLIENT})
_NODES = frozenset({Role.NODE})
_ALL = frozenset(Role)
_ADMIN = frozenset[Role]()
_SEEING_ALL = (Role.ADMIN, Role.NODE, Role.MONITOR)

ALLOWED: dict[type[m.Message], frozenset[Role]] = {
    # clients to a master
    m.RegisterKeyspace: _READERS | _NODES,
    m.Match: _READERS,
    m.Probe: _READERS,
    m.Presence: _READERS,
    m.Locate: _READERS,
    m.Renew: _READERS,
    m.Describe: _READERS,
    m.DescribeKeyspace: _READERS,
    m.ListKeyspaces: _READERS,
    m.GetClusterMap: _ALL,
    m.GetStatus: _ALL,
    m.PutStart: _CLIENTS,
    m.PutAbandon: _CLIENTS,
    m.ReportBad: _CLIENTS,  # it un-readies a block until its node has looked
    m.Remove: _CLIENTS,
    m.Clear: _CLIENTS,
    m.Pin: _CLIENTS,
    m.Unpin: _CLIENTS,
    m.Drain: _ADMIN,
    m.GetDrains: frozenset({Role.MONITOR}),
    m.SetReplicas: _CLIENTS,
    m.Warm: _ADMIN,
    m.SetTenant: _ADMIN,
    m.ListTenants: frozenset({Role.MONITOR}),
    # nodes to a master
    m.Announce: _NODES,
    m.Report: _NODES,
    m.Heartbeat: _NODES,
    m.Need: _NODES,
    # clients to a node
    m.OpenSession: _CLIENTS,
    m.Begin: _CLIENTS,
    m.Commit: _CLIENTS,
    m.PutAhead: _CLIENTS,
    m.Revoke: _CLIENTS,
    m.SessionHeartbeat: _CLIENTS,
    m.PullWrite: _CLIENTS,
    m.PutSmall: _CLIENTS,
    m.GetSmall: _READERS | _NODES,
    m.ListKeys: _READERS,
    m.LaneRead: _READERS | _NODES,
    m.LaneKeys: _NODES,
    m.LaneWrite: _CLIENTS,
}
"""The roles that may send each request, beside admins, who may send all."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a connection speaks for. `name`: of its token, for logs."""

    tenant: str
    role: Role
    name: str = ""

    def may(self, request: type[m.Message]) -> bool:
        """Whether this role may send such a request. One that the table doesn't know is for admins."""
        return self.role is Role.ADMIN or self.role in ALLOWED.get(request, _ADMIN)

    @property
    def sees_all(self) -> bool:
        """Whether keyspaces and counters of every tenant are its business."""
        return self.role in _SEEING_ALL

    def sees(self, tenant: str) -> bool:
        """Whether that tenant's keyspaces are its business."""
        return self.sees_all or tenant == self.tenant


class Authenticator(Protocol):
    """Whoever knows tokens: a TokenFile (store_client/rpc/tokens.py), or a fake."""

    def authenticate(self, token: str) -> Identity | None:
        """Whom the token stands for; None where nobody gave it out."""
        ...


def token_digest(token: str) -> bytes:
    """SHA-256 of a token: what servers keep of it."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


class Tokens:
    """An immutable list of tokens. Holds digests only."""

    def __init__(self, entries: Mapping[bytes, Identity]) -> None:
        self._entries = tuple(entries.items())

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: bytes) -> Identity | None:
        """Whom the token of that digest stands for. Takes equally long for every digest."""
        found = None
        for known, identity in self._entries:
            if hmac.compare_digest(known, digest):
                found = identity
        return found

    @staticmethod
    def parse(document: object, source: str) -> Tokens:
        """From a list of tables, or a table with such a list under "tokens". Each has `role`, and `token` or
        `token_sha256` (64 hex digits); and may have `tenant` (engines and readers) and `name`. Raises ConfigError,
        which never shows a token."""
        listed = document.get("tokens") if isinstance(document, dict) else document
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            raise ConfigError(source=source, field="tokens", problem="is no list of tables")
        if not 0 < len(listed) <= TOKENS_MAX:
            problem = f"has {len(listed)} entries; allowed are 1 to {TOKENS_MAX}"
            raise ConfigError(source=source, field="tokens", problem=problem)
        entries: dict[bytes, Identity] = {}
        for number, entry in enumerate(listed, 1):
            digest, identity = _entry(entry, number, source)
            if digest in entries:
                problem = "is the same token as that of an earlier entry"
                raise ConfigError(source=source, field=f"tokens, entry {number}", problem=problem)
            entries[digest] = identity
        return Tokens(entries)


def _entry(entry: dict[str, object], number: int, source: str) -> tuple[bytes, Identity]:
    def require(holds: bool, field: str, allowed: str) -> None:
        if not holds:
            raise ConfigError(
                source=source, field=f"tokens, entry {number}", problem=f"{field}; allowed: {allowed}"
            )

    known = ("name", "role", "tenant", "token", "token_sha256")
    for key, value in entry.items():
        require(key in known, f"{str(key)[:32]!r} is no field", ", ".join(known))
        require(isinstance(value, str), f"{key} is no text", "text")
    role = str(entry.get("role", ""))
    require(role in list(Role), f"role is {role[:32]!r}", ", ".join(Role))
    require(("token" in entry) != ("token_sha256" in entry), "has both or none", "token or token_sha256")
    if "token" in entry:
        token = str(entry["token"])
        low, high = TOKEN_CHARACTERS
        require(low <= len(token) <= high, f"token has {len(token)} characters", f"{low} to {high}")
        digest = token_digest(token)
    else:
        text = str(entry["token_sha256"])
        require(_SHA256.fullmatch(text) is not None, "token_sha256 is malformed", "64 hex digits, lower case")
        digest = bytes.fromhex(text)
    tenant = str(entry.get("tenant", DEFAULT_TENANT))
    require(
        0 < len(tenant) <= TENANT_CHARACTERS_MAX, "tenant is too long or empty", f"{TENANT_CHARACTERS_MAX}"
    )
    return digest, Identity(tenant, Role(role), str(entry.get("name", f"token {number}")))
