"""vLLM's plugin hook: makes `"kv_connector": "MoonpoolStoreConnector"` work without a module path."""

from __future__ import annotations

import contextlib

CONNECTOR_NAME = "MoonpoolStoreConnector"
MODULE_PATH = "moonpool.connector"


def register() -> None:
    """Names the connector to vLLM. Cheap, and may run any number of times in any process.

    MultiConnector looks classes up by this name even where they were loaded by a module path.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with contextlib.suppress(ValueError):  # vLLM's word for "there already"
        KVConnectorFactory.register_connector(CONNECTOR_NAME, MODULE_PATH, CONNECTOR_NAME)
