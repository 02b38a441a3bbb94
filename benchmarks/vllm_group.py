"""What the connector costs vLLM on a cold pool: prompts that nobody has seen, with and without it.

Two engines on this machine's processors, the same prompt to both, which one first changes from pair to pair.
The cost is the median of the pairs' ratios of total time, with a bootstrap interval: machines are noisy.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path

from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer, NodeServer
from moonpool.connector.demo.engine import EngineProcess, engine_options
from moonpool.connector.demo.model import ensure_model

PAIRS = 24
PROMPT_WORDS = 700
ANSWER_TOKENS = 8
POOL_BYTES = 4 << 30
BOOTSTRAPS = 2000


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """One case: how long the first token takes with the connector, over how long without."""
    model = ensure_model(Path("~/.cache/moonpool").expanduser(), lambda text: print(text, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as folder:
        run_dir = Path(folder)
        with (
            MasterServer() as master,
            NodeServer(master.address, POOL_BYTES, folder),
            EngineProcess("without", engine_options(model, None), run_dir / "without.log") as plain,
            EngineProcess(
                "with", engine_options(model, connector(master.address)), run_dir / "with.log"
            ) as ours,
        ):
            plain.wait_ready()
            ours.wait_ready()
            ratios = measure(plain, ours)
    low, high = interval(ratios)
    median = statistics.median(ratios)
    unit = f"TTFT with / without (95 % interval {low:.3f} to {high:.3f})"
    return [
        Result("vllm_cold_pool", "vllm", "moonpool", median, max(ratios), unit, len(ratios), verified=True)
    ]


def connector(master: str) -> dict[str, object]:
    """The engine's kv_transfer_config."""
    return {
        "kv_connector": "MoonpoolStoreConnector",
        "kv_connector_module_path": "moonpool.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"master": master},
    }


def measure(plain: EngineProcess, ours: EngineProcess) -> list[float]:
    """One ratio a pair; the first pair warms both engines up and isn't counted."""
    rng = random.Random(4)
    ratios = []
    for pair in range(PAIRS + 1):
        words = " ".join(f"{rng.randrange(1 << 20):x}" for _ in range(PROMPT_WORDS // 3))
        messages = [{"role": "user", "content": f"Note {pair}: {words}. What is the first word?"}]
        engines = [plain, ours] if pair % 2 else [ours, plain]
        answers = {engine.name: engine.generate(messages, ANSWER_TOKENS) for engine in engines}
        ours.settle()
        if answers["with"]["tokens"] != answers["without"]["tokens"]:
            raise AssertionError(f"pair {pair}: the answers differ")
        if pair:
            ratios.append(answers["with"]["ttft_s"] / answers["without"]["ttft_s"])
    return ratios


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(5)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS))
    return medians[int(0.025 * BOOTSTRAPS)], medians[int(0.975 * BOOTSTRAPS)]
