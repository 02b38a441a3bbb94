"""A vLLM engine with its own MooncakeStoreConnector: `python mooncake_engine.py KIND OPTIONS`. KIND moonpool: the switch is on.

One JSON object a line in, one out; vLLM's words go to stderr.
in   {"do": "generate", "prompt": [...], "tokens": 8}    {"do": "settle"}: waits for saves    {"do": "forget"}: its own cache
out  {"tokens": [...], "cached": 96, "reason": "length"} or {} or {"error": "..."}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

SETTLE_S = 120.0


class Engine:
    """vLLM in this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(**options)
        self._requests = 0

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Greedy answer to one prompt."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        (output,) = self._llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        best = output.outputs[0]
        return {
            "tokens": list(best.token_ids),
            "cached": output.num_cached_tokens or 0,
            "reason": best.finish_reason,
        }

    def settle(self) -> dict[str, Any]:
        """Steps until the connector has nothing left to save."""
        core = self._llm.llm_engine.engine_core.engine_core
        end_s = time.monotonic() + SETTLE_S
        while core.scheduler.has_requests() and time.monotonic() < end_s:
            core.step_fn()
            time.sleep(0.002)
        return {}

    def forget(self) -> dict[str, Any]:
        """Empties the engine's own prefix cache."""
        self.settle()
        return {"done": self._llm.reset_prefix_cache()}


def main(kind: str, options: dict[str, Any]) -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if kind == "moonpool":
        from moonpool.as_mooncake import install

        install()
    engine = Engine(options)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(engine, order.pop("do"))(**order)
        except Exception as error:  # noqa: BLE001 -- the test shows it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # vLLM's threads may wait for a master that is gone


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
