"""Compares what the engine processes wrote. Usage: compare.py FOLDER. Exits with 1 if a load isn't right."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 0.1  # two steps of bf16 logits; both sides compute only the prompt's last tokens


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of the log-probabilities, as far as the tokens agree; infinite where the first differs."""
    if one["tokens"][0] != other["tokens"][0]:
        return float("inf")
    same = [a == b for a, b in zip(one["tokens"], other["tokens"], strict=True)]
    agree = same.index(False) if False in same else len(same)
    pairs = zip(one["logprobs"][:agree], other["logprobs"][:agree], strict=True)
    return max(abs(a - b) for a, b in pairs)


def main() -> int:
    """Prints one line a prompt length."""
    folder = Path(sys.argv[1])
    runs = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    failed = False
    for length, reference in runs["reference"].items():
        load, control = runs["load"][length], runs["control"][length]
        recompute, hit = (statistics.median(run["ttft_s"]) for run in (reference, load))
        good = distance(reference, load) <= TOLERANCE and load["cached"] >= 0.95 * int(length)
        caught = distance(reference, control) > TOLERANCE and control["cached"] >= 0.95 * int(length)
        failed = failed or not (good and caught)
        print(
            f"{length} tokens: hit {load['cached']}, TTFT {hit * 1e3:.1f} ms against {recompute * 1e3:.1f} ms "
            f"computed ({recompute / hit:.1f}x), log-probabilities differ by {distance(reference, load):.4f}; "
            f"control: hit {control['cached']}, differs by {distance(reference, control):.4f}; "
            f"{'ok' if good and caught else 'FAILED'}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
