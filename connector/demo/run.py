"""The demo itself: who is started, who is asked what, and in which order.

1. a pool (`moonpool serve`), and three engines: two with the pool, one without
2. each engine answers something else first, so that none is measured while it warms up
3. a conversation of three turns, first wholly on engine 1, then wholly on engine 2, which has never seen it.
   Before each measured answer the engine without the pool answers the same prompt: whatever else the machine
   does at that time slows both alike, and its tokens are the ones that the answer must equal
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool.connector.demo.conversation import QUESTIONS, messages
from moonpool.connector.demo.engine import EngineProcess, engine_options
from moonpool.connector.demo.model import ensure_model
from moonpool.connector.demo.pool import DemoPool
from moonpool.connector.demo.rows import Row
from moonpool.schemas.errors import ConfigError

ANSWER_TOKENS = 24
POOL_ENGINES = ("engine-1", "engine-2")
PATIENCE: dict[str, Any] = {
    "timeout_s": 20.0,
    "match_timeout_s": 20.0,
    "load_timeout_s": 60.0,
    "save_timeout_s": 60.0,
}
"""Three engines on a small machine that does something else as well: a late answer is still worth showing."""
NEEDED = ("vllm", "gguf", "accelerate")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs: the pool's address, that of its REST interface, the engine without a pool and those with it."""

    master: str
    http: str
    reference: EngineProcess
    engines: tuple[EngineProcess, ...]


def connector_config(master: str) -> dict[str, Any]:
    """vLLM's --kv-transfer-config for a pool at `master`. A deployment needs no more than the master's address."""
    return {
        "kv_connector": "MoonpoolStoreConnector",
        "kv_connector_module_path": "moonpool.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"master": master} | PATIENCE,
    }


def check_installed() -> None:
    """Raises ConfigError where a package that only the demo needs is missing."""
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                source="this Python",
                field=name,
                problem="is not installed; `make setup` installs all that it needs",
            )


@contextmanager
def staged(cache: Path, kept_logs: Path | None, say: Say) -> Iterator[Stage]:
    """The pool and the engines, warmed up; all end with the context. Their output goes to `kept_logs`, or nowhere."""
    check_installed()
    model = ensure_model(cache, say)
    with tempfile.TemporaryDirectory(prefix="moonpool-demo-") as scratch, ExitStack() as stack:
        logs = kept_logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        say("starting a pool")
        pool = stack.enter_context(DemoPool(fallback=Path(scratch), log=logs / "pool.log"))
        if pool.http:
            say(f"watch it at {pool.http}/ui")
        say(f"pool is at {pool.master}; starting three vLLM engines (half a minute or more)")

        def start(name: str, connector: dict[str, Any] | None) -> EngineProcess:
            options = engine_options(model, connector)
            return stack.enter_context(EngineProcess(name, options, logs / f"{name}.log"))

        reference = start("without-pool", None)
        engines = tuple(start(name, connector_config(pool.master)) for name in POOL_ENGINES)
        for engine in (reference, *engines):
            engine.wait_ready()
            say(f"{engine.name} is ready")
        for engine in (reference, *engines):
            warm_up(engine)
        yield Stage(pool.master, pool.http, reference, engines)


def warm_up(engine: EngineProcess) -> None:
    """Answers a long prompt that no other engine is given."""
    text = f"{engine.name} counts: " + " ".join(str(number) for number in range(450))
    engine.generate([{"role": "user", "content": text}], 2)
    engine.settle()


def converse(stage: Stage, say: Say) -> list[Row]:
    """All turns on each engine in order."""
    rows: list[Row] = []
    for engine in stage.engines:
        answers: list[str] = []
        for turn in range(len(QUESTIONS)):
            say(f"{engine.name}, turn {turn + 1}")
            row, answer = compare(stage.reference, engine, turn, answers)
            rows.append(row)
            answers.append(answer)
    return rows


def compare(
    reference: EngineProcess, engine: EngineProcess, turn: int, answers: list[str]
) -> tuple[Row, str]:
    """One prompt on the engine without a pool, then on `engine`. Returns what came of it, and the former's answer,
    on which the conversation goes on."""
    chat = messages(turn, answers)
    cold = reference.generate(chat, ANSWER_TOKENS)
    warm = engine.generate(chat, ANSWER_TOKENS)
    engine.settle()
    cached = warm["cached_tokens"]
    row = Row(
        engine=engine.name,
        turn=turn + 1,
        prompt_tokens=warm["prompt_tokens"],
        block_tokens=engine.block_tokens,
        cached_tokens=cached,
        ttft_cold_s=cold["ttft_s"],
        ttft_warm_s=warm["ttft_s"] if cached else None,
        identical_output=warm["tokens"] == cold["tokens"],
        answer=warm["text"],
    )
    return row, cold["text"]
