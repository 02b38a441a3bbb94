"""A master and a node, and what tests of engines want of them."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any, Self

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import NotFound
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import Description, Hello, ReportBad, decode_from_master
from moonpool.store_client import StoreClient
from moonpool.store_client.rpc.connection import RpcConnection
from support.damage import Damage, damage, flip_payload
from support.processes import MasterProcess, NodeProcess
from support.vllm_engines import EngineProcess
from support.waiting import soon, wait_until


class Pool:
    """Servers that run already, and a client of them."""

    def __init__(self, master: MasterProcess, node: NodeProcess) -> None:
        self.master = master
        self.node = node
        self.client = StoreClient(ClientSettings(master=master.address, run_dir=node.run_dir, timeout_s=20))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.client.close()

    def connector(self, role: str = "kv_both", extra: dict[str, Any] | None = None) -> dict[str, Any]:
        """vLLM's kv_transfer_config. Its load failure policy is left at vLLM's default, which is "fail". The pool
        is waited for longer than by default: a busy machine is no fault."""
        place = {
            "master": self.master.address,
            "run_dir": self.node.run_dir,
            "match_timeout_s": 20.0,
            "load_timeout_s": 30.0,
            "save_timeout_s": 30.0,
        }
        return {
            "kv_connector": "MoonpoolStoreConnector",
            "kv_connector_module_path": "moonpool.connector",
            "kv_role": role,
            "kv_connector_extra_config": {**place, **(extra or {})},
        }

    def describe(self, engine: EngineProcess, prompt: list[int], block: int) -> Description:
        """What the pool knows of one block of a prompt that the engine has seen."""
        keyspace, block_hash = self.name(engine, prompt, block)
        return self.client.describe(keyspace, block_hash)

    def name(self, engine: EngineProcess, prompt: list[int], block: int) -> tuple[bytes, bytes]:
        """(keyspace, hash) of one block of a prompt."""
        (keyspace,) = engine.ask("keyspaces")["digests"]
        return bytes.fromhex(keyspace), bytes.fromhex(engine.ask("hashes", prompt=prompt)["hashes"][block])

    def await_saved(self, engine: EngineProcess, prompt: list[int], blocks: int, *, ranks: int) -> None:
        """Waits until the index has every rank's copies of the prompt's first blocks. An engine that has settled has
        committed them; the node's report of them may still be on its way."""
        end_s = soon(60)
        while time.monotonic() < end_s:
            with contextlib.suppress(NotFound):
                if len(self.describe(engine, prompt, blocks - 1).copies) == ranks:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not saved: {engine.account()}")

    def damage(
        self, engine: EngineProcess, prompt: list[int], block: int, how: Damage, *, rank: int = 0
    ) -> None:
        """Damages one rank's copy of a block where it lies."""
        copies = self.describe(engine, prompt, block).copies
        damage(self.node, next(copy for copy in copies if copy.rank == rank), how)

    def lose(self, engine: EngineProcess, prompt: list[int], block: int, *, rank: int) -> None:
        """Damages one rank's copy, tells the pool, and waits until that copy is gone."""
        keyspace, block_hash = self.name(engine, prompt, block)
        copy = next(c for c in self.client.describe(keyspace, block_hash).copies if c.rank == rank)
        damage(self.node, copy, flip_payload)
        report = ReportBad(keyspace, rank, block_hash, copy.segment, copy.slot, copy.generation)
        hello = Hello(PROTOCOL_VERSION, "client", "test")
        connection = RpcConnection(self.master.address, hello, decode_from_master)
        try:
            connection.call(report, soon())
        finally:
            connection.close()
        wait_until(lambda: all(c.rank != rank for c in self.client.describe(keyspace, block_hash).copies))
