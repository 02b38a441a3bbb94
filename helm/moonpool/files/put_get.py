"""`helm test`: puts an object into the pool, gets it back, removes it. Ends with 1 where that fails for too long."""

import os
import secrets
import sys
import time

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.mooncake_config import load_mooncake_config
from moonpool.store_client import StoreClient


def put_get(client: StoreClient) -> None:
    """Raises MoonpoolError, or AssertionError, where the pool doesn't work."""
    key, value = f"helm-test-{secrets.token_hex(8)}", secrets.token_bytes(1 << 20)
    client.put(key, value)
    try:
        assert client.get(key) == value, "other bytes came back than were put"
    finally:
        client.batch_remove([key])


def main() -> None:
    """Tries until TIMEOUT_S has passed: a pool that was installed just now needs a moment."""
    end_s = time.monotonic() + float(os.environ["TIMEOUT_S"])
    with StoreClient(load_mooncake_config()) as client:
        while True:
            try:
                put_get(client)
                print("put, get and remove of 1 MiB: good")
                return
            except (MoonpoolError, AssertionError) as error:
                print(f"not yet: {error}", file=sys.stderr)
                if time.monotonic() > end_s:
                    sys.exit(1)
                time.sleep(1)


main()
