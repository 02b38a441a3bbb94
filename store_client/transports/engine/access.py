"""What one client has of its process's transfer engine, shared by its transports to all nodes."""

from __future__ import annotations

import threading

from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.transports.engine.calls import CALLS_AT_ONCE
from moonpool.store_client.transports.engine.engine import Engine
from moonpool.store_client.transports.engine.guards import Guards
from moonpool.store_client.transports.engine.landing import Landing

BLOCKS_MAX = 4


class EngineAccess:
    """The engine, and memory that is registered with it. The engine itself stays when this is closed."""

    def __init__(self, engine: Engine, copier: DeviceCopier) -> None:
        """Raises TransferFailed where memory can't be registered."""
        self.engine = engine
        self.copier = copier
        self.landing = Landing(engine, copier, BLOCKS_MAX)
        self.guards = Guards(engine)
        self.turns = threading.Semaphore(CALLS_AT_ONCE)

    def close(self) -> None:
        """Frees the memory. All transports are closed."""
        self.landing.close()
        self.guards.close()
