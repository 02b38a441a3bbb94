"""One client of the lookups in a process of its own: commands as in worker.py."""

from __future__ import annotations

import random
import time
from typing import Any

from moonpool.benchmarks.prompts import prompt
from moonpool.benchmarks.subjects.lookups import MooncakeLookup, MoonpoolLookup
from moonpool.benchmarks.worker import serve

PROMPTS = 8
KINDS = {"moonpool": MoonpoolLookup, "mooncake": MooncakeLookup}


class LookupCommands:
    """What the parent may ask for."""

    def __init__(self, subject: MoonpoolLookup | MooncakeLookup) -> None:
        self._subject = subject
        self._prompts: list[Any] = []
        self._expected = 0

    def prepare(self, chains: int, kept: int, blocks: int, seed: int) -> dict[str, Any]:
        """Prompts of which `kept` blocks are there."""
        rng = random.Random(seed)
        self._expected = kept
        self._prompts = [
            self._subject.prepare(prompt(f"chain-{rng.randrange(chains)}", kept, blocks))
            for _ in range(PROMPTS)
        ]
        return {}

    def lookup(self, calls: int) -> dict[str, Any]:
        """Seconds of each of so many calls, and whether every answer was right."""
        samples, verified = [], True
        for index in range(calls):
            asked = self._prompts[index % len(self._prompts)]
            start_s = time.perf_counter()
            found = self._subject.ask(asked)
            samples.append(time.perf_counter() - start_s)
            verified = verified and found == self._expected
        return {"samples": samples, "verified": verified}

    def fill(self, first: int, chains: int, blocks: int) -> dict[str, Any]:
        """Stores chains."""
        self._subject.fill(first, chains, blocks)
        return {}

    def close(self) -> None:
        """Leaves."""
        self._subject.close()


if __name__ == "__main__":
    serve(lambda kind, options: LookupCommands(KINDS[kind](**options)))
