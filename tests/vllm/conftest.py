"""Models, engines and pools of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.pool import Pool
from support.processes import MasterProcess, NodeProcess
from support.tiny_model import make_tiny_model
from support.vllm_engines import EngineProcess, Nursery, StartEngine

SUSPECT_AFTER_S = 60.0
"""So long is a frozen node matched: a block is found and can't be read."""


class PatientMaster(MasterProcess):
    """A master that takes a frozen node for a slow one."""

    def arguments(self) -> list[str]:
        command = ["-m", "moonpool.store_client.cli.main", "master", "--host", "127.0.0.1"]
        return [*command, "--port", str(self.port), "--set", f"suspect_after_s={SUSPECT_AFTER_S}"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("one") / "tiny")


@pytest.fixture(scope="session")
def namesake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, in a folder of the same name."""
    return make_tiny_model(tmp_path_factory.mktemp("other") / "tiny", seed=1)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="session")
def reference(nursery: Nursery, model: Path) -> Iterator[EngineProcess]:
    """Without a connector: what it answers is right."""
    with nursery.engine(model, enable_lora=True, max_lora_rank=8, max_loras=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with PatientMaster() as master, NodeProcess(master) as node, Pool(master, node) as pool:
        yield pool


@pytest.fixture(scope="module")
def start(nursery: Nursery, model: Path, pool: Pool) -> Iterator[StartEngine]:
    """Starts engines of this module's pool, which live as long as the module's tests."""
    with ExitStack() as engines:

        def start(
            role: str = "kv_both", *, of: Path = model, extra: dict[str, Any] | None = None, **options: Any
        ) -> EngineProcess:
            return engines.enter_context(nursery.engine(of, pool.connector(role, extra), **options))

        yield start
