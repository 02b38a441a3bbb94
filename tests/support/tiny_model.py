"""A model of a million random weights that vLLM serves on a CPU in seconds; made once a session of tests."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 512


def make_tiny_model(folder: Path, *, seed: int = 0, window: int = 0, states: bool = False) -> Path:
    """A two-layer Llama; with `window` a four-layer Gemma 3 whose layers alternate sliding and full attention; with
    `states` a four-layer LFM2 whose layers alternate a short convolution, which keeps a state, and full attention.

    Weights are wide (deviation 0.2), so that answers depend on every token of the prompt: a wrong or missing block
    of KV changes them.
    """
    import torch
    import transformers

    _tokenizer().save_pretrained(folder)
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    if window:
        layers = ["sliding_attention", "full_attention"] * 2
        config = transformers.Gemma3TextConfig(
            **shape, num_hidden_layers=4, sliding_window=window, layer_types=layers, query_pre_attn_scalar=64
        )
        model = transformers.Gemma3ForCausalLM(config)
    elif states:
        del shape["head_dim"]
        # vLLM reads names that transformers no longer writes.
        old_names = {"conv_dim": 256, "conv_L_cache": 3, "block_dim": 256, "block_ff_dim": 512}
        old_names |= {
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
        }
        layers = ["conv", "full_attention"] * 2
        model = transformers.Lfm2ForCausalLM(
            transformers.Lfm2Config(**shape, **old_names, num_hidden_layers=4, layer_types=layers)
        )
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_hidden_layers=2))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def make_tiny_adapter(folder: Path, *, seed: int) -> Path:
    """A LoRA adapter of the tiny Llama whose weights are large enough to change its answers."""
    import json

    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for name, rows in (("q_proj", 256), ("v_proj", 128)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(8, 256, generator=generator) * 0.2
            tensors[f"{stem}.lora_B.weight"] = torch.randn(rows, 8, generator=generator) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _tokenizer() -> object:
    """Byte-level pairs over a text of our own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["Blocks of a prompt rest in a pool until another engine needs them. " * 20], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
