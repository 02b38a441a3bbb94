"""A vLLM engine in a process of its own, for tests: one JSON object a line in, one out. vLLM's words go to stderr.

in   {"op": "generate", "prompts": [[...], ...], "max_tokens": 8, "lora": "folder" | null, "salt": "..." | null}
     {"op": "forget"}   empties the engine's own prefix cache      {"op": "settle"}   waits for saves
     {"op": "reset"}    and resets the connector                   {"op": "stats"}    counters so far
     {"op": "abort", "prompt": [...]}                              {"op": "stop"}
out  {"outputs": [{"tokens": [...], "cached": 96, "reason": "length"}], ...} or {"error": "..."}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

SETTLE_S = 30.0


class Engine:
    """vLLM in this process (its workers too, unless tensor parallel)."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**options)
        self.engine = self.llm.llm_engine
        self.numbers: dict[str, float] = {}
        self.requests = 0

    def generate(self, order: dict[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, order["lora"]) if order.get("lora") else None
        extra = {"cache_salt": order["salt"]} if order.get("salt") else {}
        params = SamplingParams(temperature=0.0, max_tokens=order["max_tokens"], ignore_eos=True)
        names = []
        for prompt in order["prompts"]:
            self.requests += 1
            names.append(str(self.requests))
            self.engine.add_request(
                names[-1], {"prompt_token_ids": prompt, **extra}, params, lora_request=lora
            )
        outputs: dict[str, Any] = {}
        steps = 0
        while self.engine.has_unfinished_requests():
            steps += 1
            for output in self.engine.step():
                if output.finished:
                    outputs[output.request_id.split("-")[0]] = {
                        "tokens": list(output.outputs[0].token_ids),
                        "cached": output.num_cached_tokens or 0,
                        "reason": output.outputs[0].finish_reason,
                    }
        return {"outputs": [outputs[name] for name in names], "steps": steps}

    def abort(self, order: dict[str, Any]) -> dict[str, Any]:
        """Adds a request, steps until it has been looked at, aborts it."""
        from vllm import SamplingParams

        self.requests += 1
        name = str(self.requests)
        params = SamplingParams(max_tokens=64, ignore_eos=True)
        self.engine.add_request(name, {"prompt_token_ids": order["prompt"]}, params)
        for _ in range(order["steps"]):
            self.engine.step()
        self.engine.abort_request([name])
        return self.settle({})

    def settle(self, order: dict[str, Any]) -> dict[str, Any]:
        core = self.engine.engine_core
        core = getattr(core, "engine_core", core)
        limit_s = time.monotonic() + SETTLE_S
        if hasattr(core, "scheduler"):
            while core.scheduler.has_requests() and time.monotonic() < limit_s:
                core.step_fn()
                time.sleep(0.002)
            return {"settled": not core.scheduler.has_requests()}
        time.sleep(1.0)
        return {"settled": True}

    def forget(self, order: dict[str, Any]) -> dict[str, Any]:
        self.settle({})
        return {"done": self.llm.reset_prefix_cache()}

    def reset(self, order: dict[str, Any]) -> dict[str, Any]:
        self.settle({})
        return {"done": self.llm.reset_prefix_cache(reset_connector=True)}

    def stats(self, order: dict[str, Any]) -> dict[str, Any]:
        """Counters of the halves in this process, read from the metrics that vLLM keeps."""
        values = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:moonpool_"):
                values[metric.name.removeprefix("vllm:moonpool_")] = metric.value
        return {"stats": values}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    engine = Engine(json.loads(sys.argv[1]))
    answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if order["op"] == "stop":
            break
        try:
            answer(getattr(engine, order["op"])(order))
        except Exception as error:  # noqa: BLE001 -- the test shows it
            answer({"error": f"{type(error).__name__}: {error}"})
    sys.stderr.flush()
    os._exit(0)  # vLLM's threads may outlive their use


if __name__ == "__main__":
    main()
