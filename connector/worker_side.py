"""A WorkerHalf for one vLLM worker, made when its KV caches are there."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from moonpool.connector.callers import calling_object
from moonpool.connector.devices import copier_for, fence_maker, tensor_views, thread_begin
from moonpool.connector.engine_facts import Parallel, place_of
from moonpool.connector.fingerprint import files_digest, live_digest, model_folder
from moonpool.connector.groups import GroupPlan
from moonpool.connector.layout import GroupLayout
from moonpool.connector.mover import Place
from moonpool.connector.pool_client import PoolClient
from moonpool.connector.records import RankFacts
from moonpool.connector.worker_half import Fence, WorkerHalf
from moonpool.schemas.config import ConnectorSettings
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.tracing import Spans

NO_FILES = frozenset({"dummy"})
"""Load formats whose weights don't come from the model's files."""

log = logging.getLogger(__name__)

ClientMaker = Callable[[DeviceCopier | None], PoolClient]


class WeightsReader:
    """Digest of this worker's weights. Files are read once; the live model each time, for it may be updated."""

    def __init__(self, vllm_config: Any, engine_rank: int) -> None:
        runner = calling_object(_has_model)
        self._runner = None if runner is None else weakref.ref(runner)
        self._files = ""
        if engine_rank == 0:  # all ranks load from the same files
            models = [vllm_config.model_config]
            draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
            models += [draft] if draft is not None else []
            if str(vllm_config.load_config.load_format) not in NO_FILES:
                self._files = " ".join(_files_of(model) for model in models)
        self._alone = uuid.uuid4().hex

    def __call__(self) -> str:
        """The digest now."""
        runner = None if self._runner is None else self._runner()
        live = "" if runner is None else live_digest(runner.get_model())  # type: ignore[attr-defined]
        if not live and not self._files.strip():
            log.warning(
                "neither the model nor its files can be read here: nothing is shared with other engines"
            )
            return self._alone
        return f"{self._files} {live}"


def engine_rank(parallel: Parallel) -> int:
    """This worker's rank in its engine: pipeline, prefill context, tensor, the last fastest."""
    from vllm.distributed import parallel_state

    rank = int(parallel_state.get_pp_group().rank_in_group)
    if parallel.prefill_context > 1:
        rank = rank * parallel.prefill_context + int(parallel_state.get_pcp_group().rank_in_group)
    return rank * parallel.tensor + int(parallel_state.get_tp_group().rank_in_group)


def make_worker_half(
    vllm_config: Any,
    kv_cache_config: Any,
    plan: GroupPlan,
    settings: ConnectorSettings,
    kv_caches: Mapping[str, Any],
    make_client: ClientMaker,
    spans: Spans,
) -> tuple[WorkerHalf, Callable[[], Fence]]:
    """The half and its fences. Raises InvalidParams for a KV cache whose blocks can't be found."""
    place = place_of(vllm_config, kv_cache_config, engine_rank(Parallel.of(vllm_config)))
    layouts: list[GroupLayout] = []
    for group in plan.groups:
        names = kv_cache_config.kv_cache_groups[group.index].layer_names
        views = [view for name in names if name in kv_caches for view in tensor_views(name, kv_caches[name])]
        layouts.append(GroupLayout(views, int(kv_cache_config.num_blocks)))
    first = next(iter(kv_caches.values()))
    device = (first[0] if isinstance(first, (list, tuple)) else first).device
    half = WorkerHalf(
        plan,
        settings,
        make_client(copier_for(device)),
        place,
        layouts,
        _facts_maker(vllm_config, kv_caches, place, layouts),
        thread_begin(device),
        spans=spans,
    )
    for group, layout in zip(plan.groups, layouts, strict=True):
        log.info(
            "KV group %d: %d bytes a block in %d pieces (%s)",
            group.index,
            layout.block_bytes,
            layout.pieces,
            layout.description,
        )
    return half, fence_maker(device)


def _facts_maker(
    vllm_config: Any, kv_caches: Mapping[str, Any], place: Place, layouts: list[GroupLayout]
) -> Callable[[int], RankFacts]:
    weights = WeightsReader(vllm_config, place.engine_rank)

    def facts(generation: int) -> RankFacts:
        return RankFacts(
            generation,
            place.shard,
            tuple(layout.block_bytes for layout in layouts),
            tuple(layout.description for layout in layouts),
            weights(),
            (("attention", _attention_digest(vllm_config, kv_caches)),),
        )

    return facts


def _attention_digest(vllm_config: Any, kv_caches: Mapping[str, Any]) -> str:
    """Backends, which decide how K and V lie in a block, and KV scales of every layer."""
    modules = getattr(vllm_config.compilation_config, "static_forward_context", {})
    layers = []
    for name in kv_caches:
        module = modules.get(name)
        backend = getattr(module, "attn_backend", None)
        layers.append(
            (
                backend.get_name() if backend is not None else type(module).__name__,
                getattr(module, "_k_scale_float", None),
                getattr(module, "_v_scale_float", None),
            )
        )
    return hashlib.sha256(json.dumps(layers, default=str).encode()).hexdigest()[:32]


def _files_of(model_config: Any) -> str:
    folder = model_folder(str(model_config.model), getattr(model_config, "revision", None))
    return (files_digest(folder) if folder is not None else None) or ""


def _has_model(owner: object) -> bool:
    import torch

    try:
        get_model = getattr(owner, "get_model", None)
        return callable(get_model) and isinstance(get_model(), torch.nn.Module)
    except Exception:  # noqa: BLE001 -- any object up the stack may be asked: one that can't answer doesn't fit
        return False
