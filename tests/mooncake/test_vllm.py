"""vLLM's own MooncakeStoreConnector, unmodified, over Mooncake's master and over Moonpool: the same engines, the same faults.

The tests of one kind share two engines and run in the order in which they stand: the last one kills one of them.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.mooncake_pools import Pool, patience
from support.ports import free_ports
from support.tiny_model import VOCABULARY, make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

BLOCK_TOKENS = 32
START_S = 800.0
ANSWER_S = 300.0
SEGMENT_BYTES = 24 << 20
CHILD = Path(__file__).parents[1] / "support" / "mooncake_engine.py"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MC_LOG_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class Engine:
    """One engine's process."""

    def __init__(self, pool: Pool, model: Path, folder: Path, number: int, **connector: object) -> None:
        config = folder / f"mooncake-{number}.json"
        config.write_text(
            json.dumps(
                {
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": pool.master.address,
                    "protocol": "tcp",
                    "global_segment_size": SEGMENT_BYTES,
                    "local_buffer_size": 16 << 20,
                }
            )
        )
        transfer = {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lookup_rpc_port": free_ports(1)[0]},
            **connector,
        }
        options = {
            "model": str(model),
            "dtype": "float32",
            "block_size": BLOCK_TOKENS,
            "max_model_len": 1024,
            "enforce_eager": True,
            "num_gpu_blocks_override": 128,
            "kv_transfer_config": transfer,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), pool.kind, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ENVIRONMENT, **patience(4.0), "MOONCAKE_CONFIG_PATH": str(config)},
        )

    def close(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()

    def kill(self) -> None:
        """SIGKILL, as an engine that is gone."""
        self._process.kill()
        self._process.wait()

    def order(self, do: str, **arguments: object) -> None:
        """Gives one."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """To the oldest order that isn't answered yet. Raises TimeoutError."""
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], timeout_s)[0]:
            raise TimeoutError(self.log())
        found: dict[str, Any] = json.loads(stream.readline() or json.dumps({"error": self.log()}))
        assert "error" not in found, found["error"]
        return found

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """An order and its answer."""
        self.order(do, **arguments)
        return self.answer()

    def generate(self, prompt: list[int]) -> dict[str, Any]:
        """Greedy answer."""
        return self.ask("generate", prompt=prompt, tokens=16)

    def log(self) -> str:
        """The end of what it has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


@pytest.fixture(scope="module")
def engines(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two of the same model."""
    folder = tmp_path_factory.mktemp("engines")
    model = make_tiny_model(folder / "tiny")
    with ExitStack() as stack:
        found = []
        for number in range(2):
            found.append(Engine(pool, model, folder, number))
            stack.callback(found[-1].close)
        for engine in found:
            engine.answer(START_S)
        yield found


def prompt_of(seed: int, length: int = 700) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def whole(length: int) -> int:
    """Tokens of a prompt's whole blocks."""
    return (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_second_engine_hits_and_answers_the_same(pool: Pool, engines: list[Engine]) -> None:
    first, second = engines
    prompt = prompt_of(1)
    computed = first.generate(prompt)
    first.ask("settle")
    loaded = second.generate(prompt)
    assert (computed["cached"], loaded["cached"]) == (0, whole(700))
    assert loaded["tokens"] == computed["tokens"]


def test_an_engine_finds_its_own_blocks_again(engines: list[Engine]) -> None:
    first = engines[0]
    prompt = prompt_of(2)
    computed = first.generate(prompt)
    assert first.ask("forget")["done"]
    loaded = first.generate(prompt)
    assert loaded["cached"] == whole(700)
    assert loaded["tokens"] == computed["tokens"]


def test_a_block_is_one_row_with_a_rank(pool: Pool, engines: list[Engine]) -> None:
    if not pool.ours:
        return
    from moonpool.store_client import ClientSettings, StoreClient

    with StoreClient(ClientSettings(master=pool.master.address, timeout_s=20)) as client:
        (spec,) = [spec for spec in client.list_keyspaces() if spec.name == "tiny"]
        assert (spec.world, spec.hash_bytes) == (8, 32)
        listed = client.list_objects(spec)
    assert len(listed) >= whole(700) // BLOCK_TOKENS
    assert {item.rank for item in listed} == {0}


def test_a_full_pool_keeps_what_is_new(pool: Pool, engines: list[Engine]) -> None:
    """Twice the pool's size goes in. Mooncake refuses saves while it is full (-200), and the connector then gives up
    saving a request; ours evicts the oldest blocks instead, so that the newest prompts are always hits."""
    first, second = engines
    prompts = [prompt_of(100 + i) for i in range(70)]
    for prompt in prompts:
        first.generate(prompt)
    first.ask("settle")
    newest = [second.generate(prompt)["cached"] for prompt in prompts[-8:]]
    hits = sum(cached == whole(700) for cached in newest)
    if pool.ours:
        assert hits == 8
    else:
        assert hits <= 8  # some, by luck


def test_a_frozen_master_costs_a_short_pause(pool: Pool, engines: list[Engine]) -> None:
    """vLLM looks up in its scheduler: the whole engine waits. 30 s for each request with Mooncake, 2 s once with ours."""
    second = engines[1]
    prompt = prompt_of(200)
    pool.master.freeze()
    try:
        start_s = time.monotonic()
        second.order("generate", prompt=prompt, tokens=16)
        if pool.ours:
            assert second.answer(60)["reason"] == "length"
            took_s = time.monotonic() - start_s
            assert second.generate(prompt_of(201))["reason"] == "length"
            assert took_s < 25  # Mooncake's costs 30 s
        else:
            with pytest.raises(TimeoutError):
                second.answer(12)
    finally:
        pool.master.thaw()
    if not pool.ours:
        assert second.answer()["reason"] == "length"
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        fresh = prompt_of(int(deadline_s * 1000) + int(time.monotonic() * 1000))
        second.generate(fresh)
        second.ask("forget")
        if second.generate(fresh)["cached"] == whole(700):
            return
    assert not pool.ours, "the pool is not used again after the thaw"


def test_a_killed_owner_is_a_miss(pool: Pool, engines: list[Engine]) -> None:
    """Mooncake goes on to say that the blocks are there, for 10 s after its last word: loads fail, and by vLLM's default
    requests with them. Ours misses, and the engine computes."""
    first, second = engines
    prompts = [prompt_of(300 + i) for i in range(5)]
    computed = [first.generate(prompt) for prompt in prompts]
    first.ask("settle")
    first.kill()
    time.sleep(0.5)
    answers = [second.generate(prompt) for prompt in prompts]
    reasons = {answer["reason"] for answer in answers}
    assert reasons == {"length"} if pool.ours else reasons <= {"length", "error"}
    for answer, expected in zip(answers, computed, strict=True):
        assert answer["reason"] == "error" or answer["tokens"] == expected["tokens"]
    if pool.ours:
        assert sum(answer["cached"] for answer in answers) < 5 * whole(700)  # some blocks were the dead one's
    assert second.generate(prompt_of(400))["reason"] == "length"
