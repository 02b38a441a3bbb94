"""Quotas of tenants: what they may store, and whose blocks go first when room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from moonpool.schemas.access import TENANT_CHARACTERS_MAX
from moonpool.schemas.errors import ConfigError, InvalidParams
from moonpool.schemas.units import parse_size

TENANTS_MAX = 1024
QUOTA_BYTES_MAX = 1 << 60
SPARE_SHARE = 128
"""A tenant at its quota makes room for more than one block at a time: this part of its quota."""


class Books(Protocol):
    """What a master knows of its tenants' bytes, and can do about them."""

    def stored_by(self, tenant: str) -> int:
        """Bytes of all copies, and of those that are promised."""
        ...

    def evict_own(self, tenant: str, want_bytes: int) -> int:
        """Takes victims among a tenant's own blocks. Returns how many bytes that was."""
        ...


class Quotas:
    """Bytes that tenants may store in the pool. A master that owns some of the shards keeps that part of each."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits: dict[str, int] = {}
        for tenant, limit_bytes in (limits or {}).items():
            self.set(tenant, limit_bytes)

    def set(self, tenant: str, limit_bytes: int) -> bool:
        """0: no quota. Returns whether that is new. Raises InvalidParams."""
        if not 0 < len(tenant) <= TENANT_CHARACTERS_MAX or "/" in tenant:
            allowed = f"1 to {TENANT_CHARACTERS_MAX} characters, none of them a slash"
            raise InvalidParams(field="tenant", value=tenant[:32], allowed=allowed)
        if not 0 <= limit_bytes <= QUOTA_BYTES_MAX:
            raise InvalidParams(
                field="quota_bytes", value=limit_bytes, allowed=f"0 (none) to {QUOTA_BYTES_MAX}"
            )
        if self._limits.get(tenant, 0) == limit_bytes:
            return False
        if not limit_bytes:
            del self._limits[tenant]
            return True
        if len(self._limits) >= TENANTS_MAX and tenant not in self._limits:
            raise InvalidParams(field="tenant", value=tenant, allowed=f"{TENANTS_MAX} tenants with quotas")
        self._limits[tenant] = limit_bytes
        return True

    def limit(self, tenant: str) -> int:
        """0: none."""
        return self._limits.get(tenant, 0)

    def tenants(self) -> Iterable[str]:
        """Those that have one."""
        return self._limits.keys()

    def __bool__(self) -> bool:
        return bool(self._limits)


class Share(NamedTuple):
    """A master's part of all shards."""

    owned: int
    total: int

    def of(self, size_bytes: int) -> int:
        """The same part of a number of bytes."""
        return size_bytes * self.owned // self.total


def over(quotas: Quotas, share: Share, stored_by: Callable[[str], int]) -> set[str]:
    """Tenants that store more than they may."""
    return {tenant for tenant in quotas.tenants() if stored_by(tenant) > share.of(quotas.limit(tenant))}


class Spending:
    """One request's new blocks against their tenant's quota. Where it is used up, the tenant's own blocks give way."""

    def __init__(self, quotas: Quotas, share: Share, books: Books) -> None:
        self._quotas = quotas
        self._share = share
        self._books = books
        self._left: dict[str, int] = {}
        self._dry: set[str] = set()  # tenants of whose blocks no more can go now

    def spend(self, tenant: str, size_bytes: int) -> bool:
        """Whether a block of that size may be stored."""
        limit_bytes = self._quotas.limit(tenant)
        if not limit_bytes:
            return True
        limit_bytes = self._share.of(limit_bytes)
        left = self._left.get(tenant)
        if left is None:
            left = limit_bytes - self._books.stored_by(tenant)
        if left < size_bytes <= limit_bytes and tenant not in self._dry:
            want_bytes = max(size_bytes - left, limit_bytes // SPARE_SHARE)
            freed_bytes = self._books.evict_own(tenant, want_bytes)
            left += freed_bytes
            if freed_bytes < want_bytes:
                self._dry.add(tenant)
        fits = left >= size_bytes
        self._left[tenant] = left - size_bytes if fits else left
        return fits


Spend = Callable[[str, int], bool]
"""See Spending.spend."""


def parse_quotas(text: str) -> dict[str, int]:
    """Of the setting: "red=10GB,blue=500MB". Raises ConfigError."""
    limits: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        tenant, separator, size = part.partition("=")
        try:
            if not separator or not tenant.strip():
                raise ValueError
            limits[tenant.strip()] = parse_size(size.strip())
        except ValueError:
            problem = f"has {part[:64]!r}; write TENANT=SIZE,TENANT=SIZE"
            raise ConfigError(source="settings", field="quotas", problem=problem) from None
    return limits
