"""The vLLM side of Moonpool: a thin shell (store_connector.py) over a scheduler half and a worker half.

Importing this package needs no vLLM. `kv_connector_module_path: "moonpool.connector"` finds the class here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MoonpoolStoreConnector"]


def __getattr__(name: str) -> Any:
    """The connector class, imported with vLLM only when somebody asks for it."""
    if name != "MoonpoolStoreConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from moonpool.connector.store_connector import MoonpoolStoreConnector

    return MoonpoolStoreConnector
