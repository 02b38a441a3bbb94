"""GPU memory: which addresses are a device's, and a client whose copier can reach them."""

from __future__ import annotations

import logging
import sys
import threading

from moonpool.schemas.config import ClientSettings
from moonpool.store_client.client import StoreClient
from moonpool.store_client.fragments import Fragments

log = logging.getLogger(__name__)


class Devices:
    """One client for host memory, and one for the device that this process uses, if any. Thread-safe."""

    def __init__(self, settings: ClientSettings, host: StoreClient) -> None:
        self._settings = settings.model_copy(update={"segment_size": 0})
        self._host = host
        self._lock = threading.Lock()
        self._device: StoreClient | None = None

    def client_of(self, memory: Fragments) -> StoreClient:
        """For a batch, all of whose pieces are of one kind: its first piece tells."""
        device = _device_at(int(memory.addresses[0])) if len(memory.addresses) else None
        if device is None:
            return self._host
        with self._lock:
            if self._device is None:
                from moonpool.store_client.copiers.cuda import CudaCopier

                log.info("device memory is copied by the copy engines of cuda:%d", device)
                self._device = StoreClient(self._settings, copier=CudaCopier(device))
            return self._device

    def register(self, address: int, size_bytes: int) -> None:
        """Host memory that will be used often; a device pins it where one is in use. Raises TransferFailed."""
        if _device_at(address) is None:
            self._host.register_buffer((address, size_bytes))

    def unregister(self, address: int) -> None:
        """The reverse."""
        if _device_at(address) is None:
            self._host.unregister_buffer((address, 1))

    def close(self) -> None:
        """Frees the device's client."""
        with self._lock:
            if self._device is not None:
                self._device.close()


def _device_at(address: int) -> int | None:
    """The device that memory belongs to. None for host memory, and where torch has not initialised CUDA: nobody
    can have device memory then, and it isn't for us to start CUDA in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from moonpool.store_client.copiers.cuda import device_of

    return device_of(address)
