"""One engine process. Usage: engine.py {reference|save|load|control} MODEL MASTER OUT

Writes {"<tokens>": {"cached", "ttft_s": [...], "tokens", "logprobs"}} for each prompt length to OUT.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

LENGTHS = (4096, 32768)
ROUNDS = 3


def connector(mode: str, master: str) -> dict[str, Any] | None:
    """The engine's kv_transfer_config."""
    if mode == "reference":
        return None
    config: dict[str, Any] = {
        "kv_connector": "MoonpoolStoreConnector",
        "kv_connector_module_path": "moonpool.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"master": master, "match_timeout_s": 5.0},
    }
    if mode == "control":
        config |= {"kv_connector": "ClaimsButLoadsNothing", "kv_connector_module_path": "gpu_control"}
    return config


def prompt(length: int) -> list[int]:
    """The same in every process."""
    rng = random.Random(length)
    return [rng.randrange(10, 31990) for _ in range(length)]


def main() -> None:
    """Runs all prompts; in the mode save once, else ROUNDS times with an empty local prefix cache."""
    mode, model, master, out = sys.argv[1:5]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=34000,
        max_num_batched_tokens=33792,
        max_num_seqs=32,
        kv_cache_memory_bytes=8 << 30,
        dtype="bfloat16",
        seed=0,
        kv_transfer_config=connector(mode, master),
    )
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=5)
    first_token = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    warm_up = {"prompt_token_ids": [random.Random(1).randrange(10, 31990) for _ in range(2048)]}
    engine.generate([warm_up], first_token, use_tqdm=False)
    seen: dict[int, Any] = {}
    for length in LENGTHS:
        tokens = {"prompt_token_ids": prompt(length)}
        times = []
        for _ in range(1 if mode == "save" else ROUNDS):
            engine.reset_prefix_cache()
            start = time.perf_counter()
            engine.generate([tokens], first_token, use_tqdm=False)
            times.append(time.perf_counter() - start)
        if (
            mode != "reference"
        ):  # its own prefix cache has the KV that it computed: the same arithmetic as a load
            engine.reset_prefix_cache()
        answer = engine.generate([tokens], sampling, use_tqdm=False)[0]
        completion = answer.outputs[0]
        seen[length] = {
            "cached": answer.num_cached_tokens,
            "ttft_s": times,
            "tokens": list(completion.token_ids),
            "logprobs": [round(next(iter(step.values())).logprob, 4) for step in completion.logprobs],
        }
        print(mode, length, json.dumps(seen[length]), flush=True)
    if mode == "save":
        time.sleep(3)  # the last saves run behind the answer
    with open(out, "w") as file:
        json.dump(seen, file)
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown takes longer than all of this


if __name__ == "__main__":
    main()
