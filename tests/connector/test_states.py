"""State groups (Mamba and others): which of vLLM's are served, where their bytes lie, which blocks are snapshots."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from moonpool.connector.engine_facts import group_plan, place_of
from moonpool.connector.groups import Group, GroupKind
from moonpool.connector.holder import BlockPoolHolder
from moonpool.connector.layout import GroupLayout, TensorView

torch = pytest.importorskip("torch")
interface = pytest.importorskip("vllm.v1.kv_cache_interface")

pytestmark = pytest.mark.vllm

PARALLEL = SimpleNamespace(
    tensor_parallel_size=4,
    pipeline_parallel_size=1,
    prefill_context_parallel_size=1,
    decode_context_parallel_size=1,
    world_size=4,
)


def config(mode: str) -> tuple[SimpleNamespace, SimpleNamespace]:
    """vLLM's configurations of a model with states beside attention, as far as they are read."""
    states = interface.MambaSpec(
        block_size=528 if mode != "none" else 32768,
        shapes=((3, 64), (8, 16, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=16384,
        mamba_cache_mode=mode,
    )
    attention = interface.FullAttentionSpec(
        block_size=528, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[]) for spec in (states, attention)]
    model = SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: 1)
    engine = SimpleNamespace(parallel_config=PARALLEL, model_config=model, speculative_config=None)
    return engine, SimpleNamespace(kv_cache_groups=groups, hash_block_size=528)


@pytest.mark.parametrize("mode", ["align", "all"])
def test_states_that_are_kept_are_served(mode: str) -> None:
    plan = group_plan(*config(mode))
    assert plan is not None
    assert plan.groups == (Group(0, GroupKind.STATE, 528), Group(1, GroupKind.FULL, 528))
    assert not plan.groups[0].chained


def test_a_running_state_alone_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert group_plan(*config("none")) is None
    assert [record.getMessage() for record in caplog.records] == [
        "the pool is not used: it has no way to store KV group 0 (MambaSpec)"
    ]


def test_ranks_with_equal_attention_have_states_of_their_own() -> None:
    engine, cache = config("align")
    assert [place_of(engine, cache, rank).shard for rank in range(4)] == [0, 1, 2, 3]
    cache.kv_cache_groups.pop(0)
    assert [place_of(engine, cache, rank).shard for rank in range(4)] == [0, 0, 0, 0]


def test_only_a_block_that_the_engine_names_is_a_snapshot() -> None:
    utils = pytest.importorskip("vllm.v1.core.kv_cache_utils")
    blocks = [utils.KVCacheBlock(index) for index in range(3)]
    name = utils.make_block_hash_with_group_id(b"hash", 0)
    blocks[1].set_block_hash(name, 528)
    blocks[2].set_block_hash(name, 100)  # of a prompt's tail
    holder = BlockPoolHolder()
    holder.bind(SimpleNamespace(blocks=blocks))
    assert [holder.holds_state(block, 528) for block in range(3)] == [False, True, False]


def test_both_parts_of_a_state_are_found_in_their_padded_page() -> None:
    """A page: the convolution's state, the recurrent one, and padding up to the size of the attention's page."""
    blocks, conv, state, page_bytes = 5, (3, 8), (2, 4, 4), 512
    memory = np.random.default_rng(1).integers(0, 256, blocks * page_bytes, dtype=np.uint8)
    conv_bytes, state_bytes = 2 * 3 * 8, 4 * 2 * 4 * 4
    views = [
        TensorView("layer", memory.ctypes.data, (blocks, *conv), (page_bytes // 2, 8, 1), 2, "bfloat16"),
        TensorView(
            "layer",
            memory.ctypes.data + conv_bytes,
            (blocks, *state),
            (page_bytes // 4, 16, 4, 1),
            4,
            "float32",
        ),
    ]
    layout = GroupLayout(views, blocks)
    assert layout.block_bytes == conv_bytes + state_bytes
    fragments = layout.fragments([3])
    offsets = fragments.addresses - np.uint64(memory.ctypes.data)
    assert layout.pieces == 1, "they lie side by side"
    assert offsets.tolist() == [3 * page_bytes]
