"""One client of the lookup cases, in a process of its own. Arguments: master, world, shape, calls, seed."""

from __future__ import annotations

import json
import random
import sys
import time

from moonpool.benchmarks.lookup_group import CHAINS, PROMPT_BLOCKS, bench_spec, chain
from moonpool.schemas.config import ClientSettings
from moonpool.store_client import StoreClient

EXPECTED = {"hit": PROMPT_BLOCKS, "half": PROMPT_BLOCKS // 2, "miss": 0}


def prompts(shape: str, rng: random.Random) -> list[list[bytes]]:
    """A few prompts of the shape: wholly, half or not at all in the pool."""
    kept = EXPECTED[shape]
    made = []
    for index in range(8):
        known = chain(f"chain-{rng.randrange(CHAINS)}")
        made.append(known[:kept] + chain(f"unknown-{index}")[kept:])
    return made


def main() -> None:
    """Prints {"samples_us": [...], "verified": bool}."""
    address, world, shape, calls, seed = sys.argv[1:6]
    asked = prompts(shape, random.Random(int(seed)))
    samples, verified = [], True
    with StoreClient(ClientSettings(master=address, timeout_s=30.0)) as client:
        keyspace = client.register_keyspace(bench_spec(int(world)))
        for hashes in asked:
            client.match(keyspace, hashes)
        # All clients begin together: one that starts up takes the processor from those that measure.
        print("ready", flush=True)
        sys.stdin.readline()
        for index in range(int(calls)):
            hashes = asked[index % len(asked)]
            start = time.perf_counter()
            ready = client.match(keyspace, hashes)
            samples.append((time.perf_counter() - start) * 1e6)
            verified = verified and ready == EXPECTED[shape]
    print(json.dumps({"samples_us": samples, "verified": verified}))


if __name__ == "__main__":
    main()
