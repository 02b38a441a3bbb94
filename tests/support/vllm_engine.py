"""One vLLM engine as tests use it, inside its own process. Each public method is an order of support/vllm_engines.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SETTLE_S = 120.0
SCHEDULER_METHODS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "get_kv_connector_stats",
    "has_pending_push_work",
    "take_events",
)


@dataclass
class Run:
    """A request on its way. `end`: what is told of it when it has ended."""

    began_s: float
    first_s: float = 0.0
    end: dict[str, Any] = field(default_factory=dict)


class Gate:
    """A method of a pool client that waits until it may go on, or that fails."""

    def __init__(self, client: Any, method: str) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self._client, self._method = client, method
        self._real: Callable[..., Any] = getattr(client, method)
        setattr(client, method, self._call)

    def _call(self, *arguments: Any, **named: Any) -> Any:
        self.entered.set()
        assert self._open.wait(300)
        return self._real(*arguments, **named)

    def open(self) -> None:
        """For good."""
        self._open.set()
        setattr(self._client, self._method, self._real)


class Engine:
    """vLLM in this process; its workers too, unless tensor parallel."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**options)
        self.engine = self.llm.llm_engine
        self.requests = 0
        self.runs: dict[str, Run] = {}
        self.gates: dict[str, Gate] = {}
        self.loads: list[dict[str, Any]] = []

    # ------------------------------------------------------------ requests

    def generate(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        adapter: list[Any] | None = None,
        salt: str | None = None,
    ) -> dict[str, Any]:
        """All prompts at once, to their ends."""
        for prompt in prompts:
            self._add(prompt, max_tokens, adapter, salt)
        return self.finish()

    def begin(self, prompt: list[int], max_tokens: int = 64) -> dict[str, Any]:
        """Adds a request and takes no step."""
        return {"name": self._add(prompt, max_tokens, None, None)}

    def finish(self) -> dict[str, Any]:
        """Steps until every request has ended. Outputs are in the order in which they came."""
        while self.engine.has_unfinished_requests():
            self._step()
        ended = {name: run.end for name, run in self.runs.items() if run.end}
        self.runs.clear()
        return {"outputs": list(ended.values())}

    def step(self, until: str, limit_s: float = 120.0) -> dict[str, Any]:
        """Steps until a gate has been reached ("gate <name>"), some prefill is half done or tokens come out."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            outputs = self._step()
            requests = list(self.core.scheduler.requests.values())
            if until.startswith("gate ") and self.gates[until[5:]].entered.is_set():
                return {}
            if until == "prefill" and any(0 < r.num_computed_tokens < r.num_prompt_tokens for r in requests):
                return {}
            if until == "decode" and outputs:
                return {}
        raise TimeoutError(f"no step led to {until}")

    def abort(self, name: str) -> None:
        """Ends a request from outside."""
        self.engine.abort_request([name])

    def settle(self) -> dict[str, Any]:
        """Steps until nothing is left to do. Tells how many blocks are free then, and how many there are."""
        if not hasattr(self.core, "scheduler"):
            time.sleep(1.0)
            return {}
        end_s = time.monotonic() + SETTLE_S
        while self.core.scheduler.has_requests():
            if time.monotonic() > end_s:
                raise TimeoutError("the engine does not come to rest")
            self._step()  # not the core's own step: that would lose what the connector counted
            time.sleep(0.001)
        pool = self.core.scheduler.kv_cache_manager.block_pool
        return {
            "free": pool.get_num_free_blocks(),
            "blocks": pool.num_gpu_blocks - 1,
        }  # without the null block

    def forget(self, connector: bool = False) -> dict[str, Any]:
        """Empties the engine's own prefix cache; with `connector` vLLM resets the connector too."""
        self.settle()
        done = self.llm.reset_prefix_cache(reset_connector=connector)
        return {"done": done}

    # ------------------------------------------------------------ looking inside

    @property
    def core(self) -> Any:
        """vLLM's EngineCore; a client of it where it runs in a process of its own."""
        core = self.engine.engine_core
        return getattr(core, "engine_core", core)

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges that vLLM would show at /metrics, as it would show them."""
        from prometheus_client import REGISTRY, generate_latest

        values: dict[str, float] = {}
        for line in generate_latest(REGISTRY).decode().splitlines():
            if line.startswith("vllm:"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return {"values": values}

    def keyspaces(self) -> dict[str, Any]:
        """Digests of the base model's keyspaces, known after the first step."""
        return {"digests": [spec.digest().hex() for spec in self._scheduler_half()._base or ()]}

    def hashes(self, prompt: list[int]) -> dict[str, Any]:
        """Names of the prompt's full blocks."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        hasher = self.core.request_block_hasher
        request = Request("hashes", prompt, SamplingParams(), None, block_hasher=hasher)
        return {"hashes": [bytes(block).hex() for block in request.block_hashes]}

    def watch_loads(self) -> None:
        """Notes from now on which blocks each load was to fill, and which were told to be bad."""
        half = self._worker_half()
        real = half.take_loads

        def take() -> Any:
            planned = [t for t, _ in half._loads_done]
            done = real()
            for transfer in planned:
                ids = [block for span in transfer.spans for block in span.block_ids]
                self.loads.append({"blocks": ids, "bad": sorted(done.bad_block_ids & set(ids))})
            return done

        half.take_loads = take

    def take_watched_loads(self) -> dict[str, Any]:
        """What watch_loads saw."""
        loads, self.loads = self.loads, []
        return {"loads": loads}

    def watch_steps(self) -> None:
        """Measures from now on how long each step is held up in the connector's scheduler side."""
        self._blocked_s: list[float] = [0.0]
        connector = self.core.scheduler.connector
        for method in SCHEDULER_METHODS:
            setattr(connector, method, self._timed(getattr(connector, method), method))

    def take_watched_steps(self) -> dict[str, Any]:
        """Seconds for each step since the last look."""
        blocked, self._blocked_s = self._blocked_s, [0.0]
        return {"blocked_s": blocked}

    def _timed(self, real: Callable[..., Any], method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            before_s = _clocks_s()[1]
            try:
                return real(*arguments, **named)
            finally:
                self._blocked_s[-1] += _clocks_s()[1] - before_s
                if method == "build_connector_meta":
                    self._blocked_s.append(0.0)

        return call

    # ------------------------------------------------------------ faults

    def hold(self, what: str) -> None:
        """Stops the pool's "match", "get_blocks" or "put_blocks" calls of this engine at their beginning."""
        half = self._scheduler_half()._lookups if what == "match" else self._worker_half()
        self.gates[what] = Gate(half._client, what)

    def release(self, what: str) -> None:
        """The calls go on."""
        self.gates.pop(what).open()

    def break_loads(self, times: int) -> None:
        """The next loads meet a bug: an error that nobody foresaw."""
        client = self._worker_half()._client
        real, left = client.get_blocks, [times]

        def get_blocks(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                return real(*arguments, **named)
            left[0] -= 1
            raise ZeroDivisionError("a bug in a load thread")

        client.get_blocks = get_blocks

    # ------------------------------------------------------------ parts

    def _step(self) -> bool:
        """One step. Whether it led to tokens."""
        outputs = self.engine.step()
        for output in outputs:
            run = self.runs[output.request_id.split("-")[0]]
            run.first_s = run.first_s or _clocks_s()[0]
            if output.finished:
                run.end = {
                    "tokens": list(output.outputs[0].token_ids),
                    "cached": output.num_cached_tokens or 0,
                    "reason": output.outputs[0].finish_reason,
                    "ttft_s": run.first_s - run.began_s,
                }
        return bool(outputs)

    def _add(self, prompt: list[int], max_tokens: int, adapter: list[Any] | None, salt: str | None) -> str:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        self.requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
        lora = LoRARequest(*adapter) if adapter else None
        name = str(self.requests)
        self.runs[name] = Run(_clocks_s()[0])
        self.engine.add_request(name, request, params, lora_request=lora)
        return name

    def _scheduler_half(self) -> Any:
        return self.core.scheduler.connector._scheduler

    def _worker_half(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker


def _clocks_s() -> tuple[float, float]:
    """(time but for what this thread spent waiting for a core, of that what it didn't run): on a crowded machine
    the wall's clock tells of others. What is left of the second one is being held up: by locks, sockets, sleep."""
    with open("/proc/thread-self/schedstat") as file:
        ran_ns, waited_ns, _ = map(int, file.read().split())
    own_s = time.monotonic() - waited_ns / 1e9
    return own_s, own_s - ran_ns / 1e9
