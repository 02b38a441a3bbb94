"""A pool of processes and vLLM engines in processes of their own, for tests marked vllm."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_model import make_tiny_model

from moonpool.store_client.children import start_child, stop_child

START_S = 600.0  # vLLM's import alone takes a while on a busy machine
ANSWER_S = 300.0
BLOCK_TOKENS = 32
CHILD = Path(__file__).with_name("engine_child.py")

Answer = dict[str, Any]


class Pool:
    """`moonpool serve` on free ports."""

    def __init__(self, folder: Path, size: str = "128MB") -> None:
        self.folder = folder
        folder.mkdir()
        name = f"{folder.name}-{os.getpid()}"  # unique on this host
        command = ["-m", "moonpool.store_client.cli.main", "serve", "--size", size, "--port", "0"]
        with (folder / "log").open("wb") as log:
            self.process = start_child(
                [sys.executable, *command, "--name", name, "--segment-dir", str(folder), "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        line = read_line(self.process, 120.0)
        if not line:
            self.close()
            raise AssertionError((folder / "log").read_text())
        self.master = json.loads(line)["master"]

    def signal(self, number: int) -> None:
        """To master and node."""
        for child in children_of(self.process.pid):
            os.kill(child, number)

    def close(self) -> None:
        """Ends both, frozen or not."""
        self.signal(signal.SIGCONT)
        stop_child(self.process, grace_s=10.0)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Engine:
    """One engine; see engine_child.py for what can be asked."""

    def __init__(self, options: Answer, log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = start_child(
                [sys.executable, str(CHILD), json.dumps(options)],
                environment=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
            )

    def ready(self) -> Engine:
        """Waits for the model."""
        self._read(START_S)
        return self

    def ask(self, op: str, **order: Any) -> Answer:
        """One order and its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **order}).encode() + b"\n")
        self.process.stdin.flush()
        return self._read(ANSWER_S)

    def generate(self, *prompts: list[int], max_tokens: int = 8, **order: Any) -> list[Answer]:
        """Greedy answers: tokens, cached, reason."""
        outputs: list[Answer] = self.ask("generate", prompts=prompts, max_tokens=max_tokens, **order)[
            "outputs"
        ]
        return outputs

    def stats(self) -> dict[str, float]:
        """Counters since its start."""
        counters: dict[str, float] = self.ask("stats")["stats"]
        return counters

    def close(self) -> None:
        """Ends it."""
        stop_child(self.process, grace_s=2.0)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _read(self, timeout_s: float) -> Answer:
        answer: Answer = json.loads(read_line(self.process, timeout_s) or '{"error": "the engine ended"}')
        assert "error" not in answer, f"{answer['error']}\n{self.log.read_text()[-4000:]}"
        return answer


def options_of(model: Path, master: str, *, connector: Answer | None = None, **more: Any) -> Answer:
    """Arguments of vllm.LLM for a small engine with our connector. `connector`: changes of its config."""
    config = {
        "kv_connector": "MoonpoolStoreConnector",
        "kv_connector_module_path": "moonpool.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"master": master, "match_timeout_s": 5.0},
    }
    return {
        "model": str(model),
        "dtype": "float32",  # so that a loaded block and a computed one lead to the same greedy answer
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 8,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "kv_transfer_config": config | (connector or {}),
        **more,
    }


def environment() -> dict[str, str]:
    """For a small engine on this machine's processors."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """One line of a child's output."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    assert ready, "a child said nothing in time"
    return process.stdout.readline()


def children_of(pid: int) -> list[int]:
    """Process ids of a process's children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool for the tests of one module."""
    pool = Pool(tmp_path_factory.mktemp("pool") / "p")
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Engine]]]:
    """Starts engines at once, each with the options given, and ends them with the module."""
    engines: list[Engine] = []

    def make(*options: Answer) -> list[Engine]:
        folder = tmp_path_factory.mktemp("engines")
        new = [Engine(each, folder / f"{i}.log") for i, each in enumerate(options)]
        engines.extend(new)
        return [engine.ready() for engine in new]

    yield make
    for engine in engines:
        engine.close()
