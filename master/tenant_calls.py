"""Requests about tenants, and what quotas mean for all other requests."""

from __future__ import annotations

import logging

from moonpool.master.quotas import Quotas, Share, Spend, Spending, over, parse_quotas
from moonpool.master.shard_set import ShardSet, StepOf
from moonpool.master.tenant_books import TenantBooks
from moonpool.schemas.messages import AS_CONFIGURED, Done, Keyspaces, SetTenant, TenantInfo, Tenants

log = logging.getLogger(__name__)


class TenantCalls:
    """Of one master. `quotas`: as in its settings."""

    def __init__(self, shards: ShardSet, quotas: str) -> None:
        """Raises ConfigError."""
        self._shards = shards
        self._defaults = parse_quotas(quotas)
        self._quotas = Quotas(self._defaults)

    def books(self, now_s: float, step_of: StepOf) -> TenantBooks:
        """Of one request."""
        return TenantBooks(self._shards, now_s, step_of)

    @property
    def limited(self) -> bool:
        """Whether any tenant has a quota."""
        return bool(self._quotas)

    def has_quota(self, tenant: str) -> bool:
        """Whether that one has."""
        return self._quotas.limit(tenant) > 0

    def spend(self, books: TenantBooks) -> Spend:
        """What new blocks of one request are held against."""
        return Spending(self._quotas, self._share, books).spend

    def left(self, tenant: str) -> int | None:
        """Bytes that it may still store here; below 0 where it is over its quota. None: it has none."""
        limit_bytes = self._quotas.limit(tenant)
        return self._share.of(limit_bytes) - self._shards.stored_by(tenant) if limit_bytes else None

    def over(self) -> set[str]:
        """Tenants whose blocks go first."""
        return over(self._quotas, self._share, self._shards.stored_by)

    def set(self, message: SetTenant) -> Done:
        """Raises InvalidParams."""
        quota_bytes = message.quota_bytes
        if quota_bytes == AS_CONFIGURED:
            quota_bytes = self._defaults.get(message.tenant, 0)
        changed = self._quotas.set(message.tenant, quota_bytes)
        if changed:
            log.info("tenant %r has a quota of %d bytes", message.tenant, quota_bytes)
        return Done(int(changed))

    def recorded(self, tenant: str, quota_bytes: int | None) -> None:
        """What hard state says of a tenant; None: nothing, so that the settings hold. Raises InvalidParams."""
        self.set(SetTenant(tenant, AS_CONFIGURED if quota_bytes is None else quota_bytes))

    def keyspaces(self, tenant: str) -> Keyspaces:
        """Of one."""
        return Keyspaces([spec for spec in self._shards.specs() if spec.tenant == tenant])

    def list(self) -> Tenants:
        """Those that have keyspaces or a quota, by name."""
        names = {spec.tenant for spec in self._shards.specs()} | set(self._quotas.tenants())
        return Tenants([self._info(name) for name in sorted(names)])

    def facts(self, tenant: str) -> dict[str, int | float | str]:
        """What one tenant is told: nothing that depends on another."""
        return {
            "tenant": tenant,
            "quota_bytes": self._quotas.limit(tenant),
            **self._shards.facts_of(tenant),
        }

    def _info(self, name: str) -> TenantInfo:
        facts = self._shards.facts_of(name)
        return TenantInfo(name, self._quotas.limit(name), int(facts["used_bytes"]), int(facts["keyspaces"]))

    @property
    def _share(self) -> Share:
        return Share(len(self._shards), self._shards.total)
