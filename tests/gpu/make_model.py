"""A Llama with random weights, so that log-probabilities depend on every KV byte. Usage: make_model.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, WORDS = 16, 2048, 5632, 16, 8, 128, 32000


def main() -> None:
    """Writes config.json and model.safetensors (0.9 B parameters, 1.8 GB)."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": WORDS,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})


def weights() -> dict[str, torch.Tensor]:
    """Scaled so that attention matters: with near-zero weights every prompt would look alike."""
    generator = torch.Generator("cuda").manual_seed(11)

    def normal(*shape: int, scale: float = 0.03) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device="cuda") * scale
        return values.to(torch.bfloat16).cpu()

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": normal(WORDS, HIDDEN, scale=1.0),
        "model.norm.weight": ones(),
        "lm_head.weight": normal(WORDS, HIDDEN, scale=0.05),
    }
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        tensors |= {
            f"{stem}.input_layernorm.weight": ones(),
            f"{stem}.post_attention_layernorm.weight": ones(),
            f"{stem}.self_attn.q_proj.weight": normal(queries, HIDDEN),
            f"{stem}.self_attn.k_proj.weight": normal(keys, HIDDEN),
            f"{stem}.self_attn.v_proj.weight": normal(keys, HIDDEN),
            f"{stem}.self_attn.o_proj.weight": normal(HIDDEN, queries),
            f"{stem}.mlp.gate_proj.weight": normal(INNER, HIDDEN),
            f"{stem}.mlp.up_proj.weight": normal(INNER, HIDDEN),
            f"{stem}.mlp.down_proj.weight": normal(HIDDEN, INNER),
        }
    return tensors


if __name__ == "__main__":
    main()
