"""A SchedulerHalf for one vLLM engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from moonpool.connector.callers import calling_object
from moonpool.connector.client_stats import ClientStats
from moonpool.connector.counters import Counters
from moonpool.connector.engine_facts import (
    Parallel,
    config_facts,
    keyspace_name,
    none_hash,
    warn_of_random_seed,
)
from moonpool.connector.fingerprint import adapter_digest
from moonpool.connector.groups import GroupPlan
from moonpool.connector.holder import BlockPoolHolder
from moonpool.connector.identity import Identity
from moonpool.connector.lookups import PoolLookups
from moonpool.connector.pool_client import PoolClient
from moonpool.connector.records import RankFacts
from moonpool.connector.scheduler_half import SchedulerHalf
from moonpool.connector.tracked import Roles
from moonpool.schemas.clock import MonotonicClock
from moonpool.schemas.config import ClientSettings, ConnectorSettings
from moonpool.store_client.tracing import spans

log = logging.getLogger(__name__)


class AdapterReader:
    """Digests of LoRA adapters, each read once: the engine keeps what it loaded first, too."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str | None] = {}

    def __call__(self, lora_request: Any) -> str | None:
        """Digest of the adapter that a vLLM LoRARequest names; None where its files can't be read."""
        key = (int(lora_request.lora_int_id), str(lora_request.lora_path))
        if key not in self._known or getattr(lora_request, "load_inplace", False):
            self._known[key] = adapter_digest(key[1])
            if self._known[key] is None:
                log.warning("the adapter %s can't be read: its requests don't use the pool", key[1])
        return self._known[key]


def make_scheduler_half(
    vllm_config: Any,
    kv_transfer_config: Any,
    plan: GroupPlan,
    settings: ConnectorSettings,
    client_settings: ClientSettings,
    client: PoolClient,
    holder: BlockPoolHolder,
) -> SchedulerHalf:
    """The half, with a thread that asks `client`."""
    roles = Roles.of(
        kv_transfer_config.kv_role,
        lookup=settings.enable_lookup,
        save_decode_cache=settings.save_decode_cache,
    )
    if roles.loads and settings.force_recompute_policy:
        force_recompute(kv_transfer_config)

    def identity(ranks: Mapping[int, RankFacts]) -> Identity:
        warn_of_random_seed(vllm_config)
        return Identity(
            name=keyspace_name(vllm_config),
            tenant=client_settings.tenant,
            hash_bytes=len(none_hash()),
            plan=plan,
            config=config_facts(vllm_config, settings.cache_prefix),
            ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        )

    counters = Counters()
    lookups = PoolLookups(
        client,
        counters,
        timeout_s=settings.match_timeout_s,
        adapter_digest=AdapterReader(),
        spans=spans(wanted=client_settings.tracing),
    )
    return SchedulerHalf(
        plan,
        settings,
        roles,
        lookups,
        holder,
        MonotonicClock(),
        ranks=Parallel.of(vllm_config).world,
        identity=identity,
        counters=counters,
        client_stats=ClientStats(client, "scheduler").take,
    )


def force_recompute(kv_transfer_config: Any) -> None:
    """Sets kv_load_failure_policy to recompute where it is left at fail: a lost block is then computed, not an
    error of the request (invariant I9). vLLM's scheduler reads it right after it has made the connector."""
    configs = [kv_transfer_config]
    parent = calling_object(lambda owner: type(owner).__name__ == "MultiConnector")
    if parent is not None:  # vLLM heeds the parent's policy only
        configs.append(parent._kv_transfer_config)  # type: ignore[attr-defined]
    for config in configs:
        if getattr(config, "kv_load_failure_policy", None) == "fail":
            config.kv_load_failure_policy = "recompute"
            log.warning(
                "kv_load_failure_policy of %s is fail, which ends a request when a block is lost; set to recompute "
                "(refuse this with force_recompute_policy: false)",
                config.kv_connector,
            )
