"""A process that contributes a segment, stores objects in it, and stays: `python mooncake_owner.py KIND MASTER COUNT`."""

from __future__ import annotations

import importlib
import sys
import time

MODULES = {"mooncake": "mooncake.store", "moonpool": "moonpool.store_client.mooncake"}


def main(kind: str, master: str, count: int) -> None:
    """Prints a line when the objects are there."""
    store = importlib.import_module(MODULES[kind]).MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
    for i in range(count):
        assert store.put(f"owned-{i}", bytes([i % 251]) * 10_000) == 0
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
