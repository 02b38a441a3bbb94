"""A process that puts and gets: `python mooncake_worker.py KIND MASTER KEY NUMBER`. Exits with 1 where it read wrong bytes."""

from __future__ import annotations

import importlib
import sys

MODULES = {"mooncake": "mooncake.store", "moonpool": "moonpool.store_client.mooncake"}


def main(kind: str, master: str, key: str, number: int) -> int:
    """Its exit code."""
    store = importlib.import_module(MODULES[kind]).MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    value = bytes([number + 1]) * 1000
    names = [f"{key}-{number}-{i}" for i in range(20)]
    good = [store.put(name, value) == 0 and store.get(name) == value for name in names]
    # Stored already, or being stored by another one: then it can't be read yet.
    good.append(store.put(f"{key}-common", b"common") == 0)
    good.append(store.get(f"{key}-common") in (b"common", b""))
    good.append(store.batch_is_exist(names) == [1] * len(names))
    store.close()
    print(good, flush=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
