"""What vLLM's configuration says of the KV bytes: groups, roles, place of a worker, facts for the identity (I10).

Everything here reads vLLM's objects with getattr and a default: fields come and go between 0.26 and 0.33.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.mover import Place

UNSTABLE_ROPE = frozenset({"longrope", "su", "dynamic"})
"""Rope types whose keys depend on the engine's longest sequence."""
NOT_OF_THE_MODEL = frozenset({"_name_or_path", "transformers_version", "_commit_hash"})

KEPT_STATES = frozenset({"align", "all"})
"""vLLM's ways to cache states that leave a snapshot at block boundaries. With "none" there is only the running one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parallel:
    """How the engine is cut up."""

    tensor: int
    pipeline: int
    prefill_context: int
    decode_context: int
    world: int

    @staticmethod
    def of(vllm_config: Any) -> Parallel:
        """From vLLM's ParallelConfig."""
        config = vllm_config.parallel_config
        return Parallel(
            int(config.tensor_parallel_size),
            int(config.pipeline_parallel_size),
            int(getattr(config, "prefill_context_parallel_size", 1)),
            int(getattr(config, "decode_context_parallel_size", 1)),
            int(config.world_size),
        )


def group_plan(vllm_config: Any, kv_cache_config: Any) -> GroupPlan | None:
    """The groups that the pool serves; None, with a word in the log, for a model that it can't serve."""
    cacheable = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    groups: list[Group] = []
    dcp = Parallel.of(vllm_config).decode_context
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        if cacheable is not None and index not in cacheable:
            continue
        found = _group(index, group.kv_cache_spec, dcp)
        if found is None:
            log.warning(
                "the pool is not used: it has no way to store KV group %d (%s)",
                index,
                type(group.kv_cache_spec).__name__,
            )
            return None
        groups.append(found)
    if not groups:
        log.warning("the pool is not used: this model has no KV cache that can be shared")
        return None
    proof = 0
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None:
        drops = getattr(speculative, "use_eagle_block_drop", None) or getattr(speculative, "use_eagle", None)
        proof = int(bool(drops is not None and drops()))
    hash_tokens = _hash_tokens(vllm_config, kv_cache_config, groups)
    if any(group.block_tokens % hash_tokens for group in groups):
        log.warning(
            "the pool is not used: a block of it isn't a whole number of %d-token hashes", hash_tokens
        )
        return None
    return GroupPlan(tuple(groups), hash_tokens, proof)


def place_of(vllm_config: Any, kv_cache_config: Any, engine_rank: int) -> Place:
    """Shard and replica of a worker. Ranks are laid out pipeline, prefill context, tensor, the last fastest."""
    parallel = Parallel.of(vllm_config)
    replicas = _replicas(vllm_config, kv_cache_config, parallel)
    tensor_rank = engine_rank % parallel.tensor
    outer = engine_rank // parallel.tensor
    shard = outer * (parallel.tensor // replicas) + tensor_rank // replicas
    return Place(engine_rank, shard, tensor_rank % replicas, replicas)


def config_facts(vllm_config: Any, cache_prefix: str) -> dict[str, str]:
    """Facts of the resolved configuration that the bytes of a block depend on."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = Parallel.of(vllm_config)
    facts = {
        "model_config": _json_digest(_plain(model.hf_config)),
        "dtype": str(model.dtype),
        "quantization": str(getattr(model, "quantization", None)),
        "kv_cache_dtype": str(cache.cache_dtype),
        "runner": f"{getattr(model, 'runner_type', '')} {getattr(model, 'convert_type', '')}",
        "parallel": (
            f"tp {parallel.tensor} pp {parallel.pipeline} "
            f"pcp {parallel.prefill_context} dcp {parallel.decode_context}"
        ),
        "interleave": str(getattr(vllm_config.parallel_config, "cp_kv_cache_interleave_size", 1)),
        "hash_algorithm": str(cache.prefix_caching_hash_algo),
        "hash_seed": none_hash().hex(),
        "speculative": _speculative(getattr(vllm_config, "speculative_config", None)),
    }
    if cache_prefix:
        facts["cache_prefix"] = cache_prefix
    if _rope_types(_plain(model.hf_config)) & UNSTABLE_ROPE:
        facts["max_model_len"] = str(model.max_model_len)
    if getattr(cache, "calculate_kv_scales", False):
        log.warning(
            "calculate_kv_scales gives each engine KV scales of its own: nothing is shared with others"
        )
        facts["own_scales"] = uuid.uuid4().hex
    return facts


def keyspace_name(vllm_config: Any) -> str:
    """For people: the architecture. Paths and served names would part engines that can share."""
    architectures = getattr(vllm_config.model_config.hf_config, "architectures", None) or ["model"]
    return str(architectures[0])[:128]


def none_hash() -> bytes:
    """vLLM's hash of nothing, the seed of every chain; known once the engine has started."""
    from vllm.v1.core import kv_cache_utils

    return bytes(kv_cache_utils.NONE_HASH)


def warn_of_random_seed(vllm_config: Any) -> None:
    """Says once why nothing can be shared, where vLLM draws the seed of its block hashes anew in each process."""
    from vllm.v1.core import kv_cache_utils

    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    fixed = hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED") and algorithm.startswith("sha256")
    if not fixed and os.environ.get("PYTHONHASHSEED") is None:
        log.warning(
            "vLLM seeds its block hashes (%s) at random here, so no other engine can find these blocks; "
            "set PYTHONHASHSEED to one value for all engines",
            algorithm,
        )


def _group(index: int, spec: Any, dcp: int) -> Group | None:
    inner = getattr(spec, "kv_cache_specs", None)
    if inner:
        parts = [_group(index, part, dcp) for part in inner.values()]
        return parts[0] if all(part == parts[0] for part in parts) else None
    names = {kind.__name__ for kind in type(spec).__mro__}
    scale = dcp if getattr(spec, "dcp_sharded", dcp > 1) else 1
    tokens = int(spec.block_size) * scale
    if "SlidingWindowSpec" in names:
        span = int(spec.sliding_window) - 1 + int(getattr(spec, "extra_retained_tokens", 0))
        return Group(index, GroupKind.WINDOW, tokens, span)
    if _is_state(spec) and getattr(spec, "mamba_cache_mode", "none") in KEPT_STATES:
        return Group(index, GroupKind.STATE, tokens)
    if "ChunkedLocalAttentionSpec" in names:
        return Group(index, GroupKind.CHUNK, tokens, int(spec.attention_chunk_size))
    unlike = {"RSWASpec", "SinkFullAttentionSpec", "HiddenStateCacheSpec", "CrossAttentionSpec"}
    if "FullAttentionSpec" in names and not names & unlike:
        return Group(index, GroupKind.FULL, tokens)
    return None


def _hash_tokens(vllm_config: Any, kv_cache_config: Any, groups: list[Group]) -> int:
    """Tokens a block hash covers."""
    known = getattr(kv_cache_config, "hash_block_size", None)
    if known:
        return int(known)
    try:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])
    except ImportError:
        return gcd(*(group.block_tokens for group in groups))


def _replicas(vllm_config: Any, kv_cache_config: Any, parallel: Parallel) -> int:
    """Consecutive tensor-parallel ranks with equal KV."""
    known = getattr(kv_cache_config, "kv_tp_replicas", None)
    if known is not None:
        return int(known)
    if parallel.decode_context > 1:
        return 1
    if any(_is_state(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups):
        return 1  # states are cut up among all ranks, whatever the attention heads are
    model = vllm_config.model_config
    if getattr(model, "use_mla", False):
        return parallel.tensor
    return max(1, parallel.tensor // int(model.get_total_num_kv_heads()))


def _is_state(spec: Any) -> bool:
    return any(kind.__name__ == "MambaSpec" for kind in type(spec).__mro__)


def _speculative(config: Any) -> str:
    """The draft model's part: its layers' KV lies in the same blocks."""
    if config is None:
        return ""
    draft = getattr(config, "draft_model_config", None)
    described = _json_digest(_plain(draft.hf_config)) if draft is not None else ""
    return f"{getattr(config, 'method', '')} {described}"


def _plain(hf_config: Any) -> dict[str, Any]:
    return {key: value for key, value in hf_config.to_dict().items() if key not in NOT_OF_THE_MODEL}


def _rope_types(config: Mapping[str, Any]) -> set[str]:
    """Every rope type that a model's configuration names, however deep."""
    found: set[str] = set()
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _rope_types(value)
        elif key in ("rope_type", "type") and isinstance(value, str):
            found.add(value)
    return found


def _json_digest(value: object) -> str:
    """Digest of plain data. An object that isn't plain counts by its type: its text may hold an address."""
    text = json.dumps(value, sort_keys=True, default=_simplify)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _simplify(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, Iterable):
        return list(value)
    text = str(value)
    return text if " at 0x" not in text else type(value).__name__
