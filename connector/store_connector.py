"""MoonpoolStoreConnector: vLLM's connector interface over the two halves. Here is glue only.

Made for vLLM 0.26 to 0.33: methods that only some versions call are all here, names that only some versions
have are looked up, and arguments that only some versions pass are accepted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from moonpool.connector import plugin
from moonpool.connector.engine_facts import group_plan
from moonpool.connector.extra_config import read_extra_config
from moonpool.connector.holder import BlockPoolHolder
from moonpool.connector.metrics import MoonpoolPromMetrics, MoonpoolStats
from moonpool.connector.pool_client import PoolClient
from moonpool.connector.records import StepMeta, WorkerReport
from moonpool.connector.scheduler_half import SchedulerHalf
from moonpool.connector.scheduler_side import make_scheduler_half
from moonpool.connector.tables import BlockTables
from moonpool.connector.tracked import StepView
from moonpool.connector.worker_half import Fence, WorkerHalf
from moonpool.connector.worker_side import make_worker_half
from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.tracing import spans

IDLE_PAUSE_S = 0.0002
"""A step that computes nothing and waits for our threads: an engine in their process would keep the interpreter
lock from them by stepping as fast as it can."""

log = logging.getLogger(__name__)

plugin.register()  # MultiConnector finds a class by name only


@dataclass
class MoonpoolMetadata(KVConnectorMetadata):  # type: ignore[misc] # vLLM is untyped here
    """Scheduler to workers, each step."""

    step: StepMeta = field(default_factory=StepMeta)


@dataclass
class MoonpoolWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Workers to scheduler, each step that there is something to tell."""

    report: WorkerReport = field(default_factory=WorkerReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Takes in another worker's."""
        self.report.merge(other.report)
        return self


class MoonpoolStoreConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Loads the longest cached prefix of a prompt from the pool, and saves what the engine computes to it."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_as_vllm()
        config = vllm_config.kv_transfer_config
        self._settings, self._client_settings = read_extra_config(config.kv_connector_extra_config or {})
        self._plan = group_plan(vllm_config, kv_cache_config)
        # Block ids name blocks of the only group, where there is only one.
        self._fails_by_block = (
            self._plan is not None and self._plan.fails_by_block and len(kv_cache_config.kv_cache_groups) == 1
        )
        if self._plan is not None and not self._fails_by_block and not _whole_loads_can_fail():
            log.warning(
                "the pool is not used: for sliding windows and hybrid models it needs vLLM 0.30 or later"
            )
            self._plan = None
        self._holder = BlockPoolHolder()
        self._tables = BlockTables()
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._fence: Callable[[], Fence] | None = None
        self._bad_block_ids: set[int] = set()
        if role == KVConnectorRole.SCHEDULER and self._plan is not None:
            # Segments are contributed by workers: the scheduler moves no payload.
            settings = self._client_settings.model_copy(update={"segment_size": 0})
            self._scheduler = make_scheduler_half(
                vllm_config, config, self._plan, self._settings, settings, _client(settings), self._holder
            )

    # ------------------------------------------------------------ what kind of connector this is

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is a later miss, nothing worse."""
        return False

    @classmethod
    def supports_sleep_mode(cls, *args: Any, **kwargs: Any) -> bool:
        """No: sleeping frees the KV cache under transfers that may be under way."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Any layout: blocks are found by strides."""
        return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MoonpoolStats:
        """Our stats from what crossed a process boundary."""
        return MoonpoolStats(data=data) if data is not None else MoonpoolStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MoonpoolPromMetrics:
        """Our counters in vLLM's registry."""
        return MoonpoolPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ------------------------------------------------------------ both sides

    def get_kv_connector_stats(self) -> MoonpoolStats | None:
        """What was counted since the last call."""
        half = self._scheduler or self._worker
        data = half.take_stats() if half is not None else {}
        return MoonpoolStats(data=data) if data else None

    def shutdown(self) -> None:
        """Ends threads and connections."""
        for half in (self._scheduler, self._worker):
            if half is not None:
                half.close()
        self._scheduler = self._worker = None

    # ------------------------------------------------------------ scheduler side

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM 0.30 and later."""
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """The blocks that saves hold."""
        self._holder.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """Its lookup begins now, while it waits for its turn."""
        if self._scheduler is not None:
            self._scheduler.arrive(request, request.lora_request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that the pool has beyond `num_computed_tokens`, loaded between steps; None: ask again."""
        if self._scheduler is None or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        tokens = self._scheduler.offer(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has blocks to load into."""
        if self._scheduler is not None and num_external_tokens > 0:
            self._scheduler.taken(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> MoonpoolMetadata:
        """Loads and saves of this step."""
        table = self._tables.of_step(scheduler_output)
        if self._scheduler is None:
            return MoonpoolMetadata()
        scheduled = scheduler_output.num_scheduled_tokens if self._holder.bound else {}
        if not scheduled and self._scheduler.waiting:
            time.sleep(IDLE_PAUSE_S)
        return MoonpoolMetadata(self._scheduler.step(StepView(scheduled, table)))

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers did."""
        if self._scheduler is None:
            return
        meta = connector_output.kv_connector_worker_meta
        report = meta.report if isinstance(meta, MoonpoolWorkerMetadata) else None
        self._scheduler.report(report, list(connector_output.finished_recving or ()))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Never delays the freeing: blocks to be saved are held by themselves."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same for any number of groups."""
        self._tables.forget(request.request_id)
        if self._scheduler is not None:
            self._scheduler.finish(request, block_ids if self._holder.bound else ())
        return False, None

    def has_pending_push_work(self) -> bool:
        """Keeps an idle engine stepping until held blocks are released."""
        return self._scheduler is not None and self._scheduler.pending

    def take_events(self) -> Iterable[Any]:
        """None: the pool tells routers itself."""
        return ()

    def reset_cache(self) -> bool | None:
        """Clears this engine's keyspaces, no one else's."""
        return self._scheduler.reset() if self._scheduler is not None else None

    # ------------------------------------------------------------ worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The memory that blocks lie in."""
        if self._plan is None or not kv_caches:
            return

        def make_client(copier: DeviceCopier | None) -> PoolClient:
            return _client(self._client_settings, copier)

        try:
            self._worker, self._fence = make_worker_half(
                self._vllm_config,
                self._kv_cache_config,
                self._plan,
                self._settings,
                kv_caches,
                make_client,
                spans(wanted=self._client_settings.tracing),
            )
        except MoonpoolError as error:
            log.error("the pool is not used: %s", error)

    def register_cross_layers_kv_cache(self, kv_cache: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM up to 0.28: one tensor over all layers of the only group."""
        names = self._kv_cache_config.kv_cache_groups[0].layer_names
        self.register_kv_caches({names[0]: kv_cache})

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Orders of this step."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, MoonpoolMetadata):
            self._worker.step(connector_metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads wait for what the engine has launched: a block just freed may still be written by it."""
        if self._worker is not None and self._fence is not None:
            self._worker.start_loads(self._fence)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request runs when its load is done."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do: blocks are saved whole, after the forward pass."""

    def wait_for_save(self) -> None:
        """Saves wait for this step's forward pass; the engine doesn't wait for them."""
        if self._worker is not None and self._fence is not None:
            self._worker.start_saves(self._fence)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """vLLM up to 0.29: requests whose loads ended, well or not."""
        return None, self._take_loads()[0] or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """vLLM 0.30 and later."""
        finished, failed = self._take_loads()
        return base.KVConnectorTransferResults(
            finished_sending=set(), finished_recving=finished, failed_recving=failed
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Every block that was not loaded, where block ids are unambiguous: models with one KV group."""
        bad, self._bad_block_ids = self._bad_block_ids, set()
        return bad

    def build_connector_worker_meta(self) -> MoonpoolWorkerMetadata | None:
        """What the scheduler half must hear."""
        report = self._worker.take_report() if self._worker is not None else None
        return MoonpoolWorkerMetadata(report) if report is not None else None

    def _take_loads(self) -> tuple[set[str], set[str]]:
        """(finished, of those failed as a whole)."""
        if self._worker is None:
            return set(), set()
        done = self._worker.take_loads()
        if not self._fails_by_block:
            return done.finished, done.failed
        self._bad_block_ids |= done.bad_block_ids
        return done.finished, set()


def _client(settings: ClientSettings, copier: DeviceCopier | None = None) -> PoolClient:
    from moonpool.store_client.client import StoreClient

    return StoreClient(settings, copier=copier)


def _whole_loads_can_fail() -> bool:
    """Whether vLLM can be told that a load failed as a whole. Where it can, it shows exact block tables, too."""
    return hasattr(base, "KVConnectorTransferResults")


def _log_as_vllm() -> None:
    """Our words go where vLLM's go, unless somebody has set up another place for them."""
    ours, theirs = logging.getLogger("moonpool"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = False
