"""A process whose memory nodes may pull from: `python engine_writer.py SIZE_BYTES`.

Says "listening on PROTOCOL://HOST:PORT memory ADDRESS guard ADDRESS token NUMBER", then waits to be frozen or killed.
"""

from __future__ import annotations

import mmap
import sys
import time

import numpy as np

from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.engine.engine import open_engine
from moonpool.store_client.transports.engine.guards import Guards

if __name__ == "__main__":
    size_bytes = int(sys.argv[1])
    engine = open_engine("tcp", "127.0.0.1", "")
    memory = mmap.mmap(-1, size_bytes)
    address = address_of(np.frombuffer(memory, dtype=np.uint8))
    engine.register(address, size_bytes)
    with Guards(engine).guard() as (guard, token):
        print(f"listening on {engine.address} memory {address} guard {guard} token {token}", flush=True)
        time.sleep(600)
