"""The parent's end of an engine process: starts it, asks it, and ends it by all means."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moonpool.schemas.errors import RpcFailed
from moonpool.store_client.children import start_child, stop_child

START_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 300.0
BLOCK_TOKENS = 32
LOG_TAIL_BYTES = 1500


def engine_options(model: Path, connector: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments of vllm.LLM. float32, so that greedy answers can be compared token by token."""
    options: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 4096,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 4,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,  # needs no C++ compiler
        "enable_prefix_caching": True,
        "seed": 0,
    }
    return options if connector is None else options | {"kv_transfer_config": connector}


def engine_environment() -> dict[str, str]:
    """This environment, set for a small engine on this machine's processors.

    One core is left to the rest of the machine: OpenMP's threads wait for each other some thousand times a second, and
    a single one that has to share its core holds up all.
    """
    threads = max(1, len(os.sched_getaffinity(0)) - 1)
    return os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


class EngineProcess:
    """A vLLM engine in a child process. Its output is in `log`."""

    def __init__(self, name: str, options: dict[str, Any], log: Path) -> None:
        self.name = name
        self.log = log
        self.block_tokens = 0
        with log.open("wb") as stream:
            self._process = start_child(
                [sys.executable, "-m", "moonpool.connector.demo.engine_worker", json.dumps(options)],
                environment=engine_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
            )

    def wait_ready(self) -> None:
        """Returns when the model is loaded. Raises RpcFailed with the end of its log."""
        self.block_tokens = self._read("its start", START_TIMEOUT_S)["block_tokens"]

    def generate(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        """One greedy answer; see engine_worker for the fields."""
        return self._ask({"op": "generate", "messages": messages, "max_tokens": max_tokens})

    def settle(self) -> None:
        """Returns when the engine has nothing left to write to the pool."""
        self._ask({"op": "settle"})

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        stop_child(self._process, grace_s=2.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("its process ended") from None
        return self._read(request["op"], ANSWER_TIMEOUT_S)

    def _read(self, what: str, timeout_s: float) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        # The worker writes whole lines and one at a time, so nothing waits in Python's buffer when select is asked.
        if not select.select([pipe], [], [], timeout_s)[0]:
            raise self._failed(f"no answer to {what} within {timeout_s:g} s")
        line = pipe.readline()
        if not line:
            raise self._failed("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def _failed(self, reason: str) -> RpcFailed:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return RpcFailed(peer=self.name, reason=f"{reason}; the end of {self.log}:\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
