"""One vLLM engine in a process of its own, driven by JSON lines.

stdin   {"op": "generate", "messages": [...], "max_tokens": 32} | {"op": "settle"} | {"op": "stop"}
stdout  {"ready": true, "block_tokens": 32} first, then one answer a request; {"error": "..."} where it failed

Everything that vLLM itself prints goes to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, TextIO

SETTLE_LIMIT_S = 30.0


class Engine:
    """vLLM in this process, one request at a time."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(**options)
        self._engine = self._llm.llm_engine
        self._requests = 0

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return int(self._engine.vllm_config.cache_config.block_size)

    def generate(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        """The greedy answer, the time to its first token and how many prompt tokens were not computed."""
        from vllm import SamplingParams

        self._forget_own_cache()
        tokenizer = self._llm.get_tokenizer()
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        tokens = tokenizer.encode(prompt, add_special_tokens=False)
        self._requests += 1
        started = time.monotonic()
        self._engine.add_request(
            str(self._requests),
            {"prompt_token_ids": tokens},
            SamplingParams(temperature=0.0, max_tokens=max_tokens),
        )
        first_token_s, last = None, None
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                last = output
                if first_token_s is None and output.outputs[0].token_ids:
                    first_token_s = time.monotonic() - started
        if last is None or first_token_s is None:
            raise RuntimeError("the engine gave no token")
        return {
            "text": last.outputs[0].text,
            "tokens": list(last.outputs[0].token_ids),
            "finish_reason": last.outputs[0].finish_reason,
            "prompt_tokens": len(tokens),
            "cached_tokens": last.num_cached_tokens or 0,
            "ttft_s": first_token_s,
        }

    def settle(self) -> dict[str, Any]:
        """Steps an idle engine until its connector has written what it holds back."""
        core = self._engine.engine_core.engine_core
        limit = time.monotonic() + SETTLE_LIMIT_S
        while core.scheduler.has_requests() and time.monotonic() < limit:
            core.step_fn()
            time.sleep(0.002)
        return {"settled": not core.scheduler.has_requests()}

    def _forget_own_cache(self) -> None:
        """Empties vLLM's own prefix cache, so that every cached token that is counted came from the pool.

        The cache stays switched on, because the block hashes are made for it. The pool isn't touched: that would be
        reset_connector=True. vLLM refuses while blocks are in use, as by a save that isn't done.
        """
        limit = time.monotonic() + SETTLE_LIMIT_S
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > limit:
                raise RuntimeError("blocks stay in use: the engine's own prefix cache can't be emptied")
            self.settle()
            time.sleep(0.01)


def _serve(options: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    engine = Engine(options)
    answer({"ready": True, "block_tokens": engine.block_tokens})
    for line in requests:
        request = json.loads(line)
        try:
            if request["op"] == "generate":
                answer(engine.generate(request["messages"], request["max_tokens"]))
            elif request["op"] == "settle":
                answer(engine.settle())
            else:
                return
        except Exception as error:  # noqa: BLE001 - the parent shows it and decides
            answer({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """`python -m moonpool.connector.demo.engine_worker '<JSON of vllm.LLM's arguments>'`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("moonpool").setLevel(logging.INFO)
    _serve(json.loads(sys.argv[1]), sys.stdin, answers)
    # vLLM's worker threads may outlive their use: nothing is left to be saved, so nothing is waited for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
