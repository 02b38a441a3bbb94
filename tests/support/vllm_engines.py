"""Real vLLM engines for tests, each in a process of its own: two seconds a start, because all fork from one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support import shared_files
from support.tiny_model import VOCABULARY

START_TIMEOUT_S = 600.0
ORDER_TIMEOUT_S = 300.0
BLOCK_TOKENS = 32
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # or a C++ compiler runs for seconds, though the engines are eager
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",  # so that equal prompts have equal answers, however they are cut into steps
    "block_size": BLOCK_TOKENS,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 128,
    "enforce_eager": True,
    "disable_log_stats": False,
}


@dataclass(frozen=True)
class Output:
    """One request's end. `cached`: prompt tokens that were not computed. `ttft_s`: to the first token, without the
    time in which the machine had no core for the engine."""

    tokens: list[int]
    cached: int
    reason: str
    ttft_s: float


class EngineProcess:
    """An engine. Orders are the methods of support/vllm_engine.py; one that fails there raises AssertionError."""

    def __init__(self, line: socket.socket, log: Path) -> None:
        self._line = line
        self._stream = line.makefile("rw")
        self._log = log
        self._line.settimeout(START_TIMEOUT_S)
        self.pid: int = self._answer()["pid"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Gives an order and waits for its answer."""
        self._line.settimeout(ORDER_TIMEOUT_S)
        self._stream.write(json.dumps({"do": order, **arguments}) + "\n")
        self._stream.flush()
        return self._answer()

    def generate(
        self,
        *prompts: list[int],
        max_tokens: int = 8,
        adapter: tuple[str, int, str] | None = None,
        salt: str | None = None,
    ) -> list[Output]:
        """Greedy answers to all prompts, which run at the same time. `adapter`: name, id, folder."""
        answer = self.ask("generate", prompts=prompts, max_tokens=max_tokens, adapter=adapter, salt=salt)
        return [Output(**output) for output in answer["outputs"]]

    def settle(self) -> None:
        """Waits until saves are done, and checks that no block of the engine is held by anybody."""
        blocks = self.ask("settle")
        assert blocks.get("free") == blocks.get("blocks")

    def forget(self) -> None:
        """Waits for the saves, then empties the engine's own cache: what it finds after this comes from the pool."""
        assert self.ask("forget")["done"]

    def metrics(self) -> dict[str, float]:
        """Sums over all labels, by name."""
        values: dict[str, float] = self.ask("metrics")["values"]
        return values

    def counted(self, name: str) -> float:
        """One of the connector's counters, so far."""
        return self.metrics().get(f"vllm:moonpool_{name}_total", 0.0)

    def account(self) -> str:
        """What it did, for a test that failed: the connector's counters and its last words."""
        counted = {name: value for name, value in self.metrics().items() if "moonpool" in name and value}
        return f"{counted}\n{self.log()[-4000:]}"

    def log(self) -> str:
        """Everything it has said."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and its workers with it. Does nothing to one that is dead."""
        left = shared_files.mapped_by_group(self.pid)
        self._stream.close()  # at which it ends of itself
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        shared_files.remove(left)

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except TimeoutError:
            line = ""
        if not line:
            raise AssertionError(f"the engine does not answer:\n{self.log()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self.log()[-4000:]}"
        return answer


StartEngine = Callable[..., EngineProcess]
"""Arguments: kv_role; `of`, the model; `extra`, for kv_connector_extra_config; and vLLM's own."""


class Nursery:
    """The process that engines are forked from."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="moonpool-engines-")
        self._count = 0
        tests = str(Path(__file__).resolve().parent.parent)
        self._log = open(Path(self._folder.name, "nursery.log"), "wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.engine_nursery"],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": tests},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return self
        raise AssertionError(Path(self._log.name).read_text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()

    def engine(
        self,
        model: Path,
        connector: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> EngineProcess:
        """Starts an engine. `connector`: vLLM's kv_transfer_config. `options`: more of vLLM's, over OPTIONS."""
        self._count += 1
        path = f"{self._folder.name}/{self._count}"
        wanted = {"model": str(model), **OPTIONS, **options}
        if connector is not None:
            wanted["kv_transfer_config"] = connector
        order = {
            "socket": path,
            "log": f"{path}.log",
            "options": wanted,
            "environment": environment or {},
        }
        assert self._process.stdin is not None
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen(1)
            door.settimeout(START_TIMEOUT_S)
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line, _ = door.accept()
        try:
            return EngineProcess(line, Path(f"{path}.log"))
        except BaseException:
            line.close()
            raise


def prompt(seed: object, blocks: int, more: int = 5) -> list[int]:
    """Random tokens: that many full blocks, and some more."""
    rng = random.Random(str(seed))
    return [rng.randrange(3, VOCABULARY) for _ in range(blocks * BLOCK_TOKENS + more)]
