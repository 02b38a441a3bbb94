"""`moonpool demo` as a person runs it: real engines, a real pool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_the_second_engine_takes_the_prompt_from_the_pool() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moonpool.store_client.cli.main", "demo", "--json", "--cache", str(CACHE)],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["engine"], row["turn"]) for row in rows] == [
        (engine, turn) for engine in ("engine-1", "engine-2") for turn in (1, 2, 3)
    ]
    assert all(row["identical_output"] for row in rows)
    first, *later = rows
    assert first["cached_tokens"] == 0
    assert first["ttft_warm_s"] is None
    for row in later:
        all_but_one = row["prompt_tokens"] - 1
        assert row["cached_tokens"] % row["block_tokens"] == 0 or row["cached_tokens"] == all_but_one
        assert row["ttft_warm_s"] > 0
    for row in rows[3:]:
        # All blocks of the prompt that the first engine computed, but at most all tokens but one: a prompt may end with a block.
        blocks = row["prompt_tokens"] // row["block_tokens"] * row["block_tokens"]
        assert row["cached_tokens"] == min(blocks, row["prompt_tokens"] - 1)
    # Ten times faster when idle; a busy machine still shows the difference, at its best.
    warm_s, cold_s = (min(row[name] for row in rows[3:]) for name in ("ttft_warm_s", "ttft_cold_s"))
    assert warm_s < cold_s
