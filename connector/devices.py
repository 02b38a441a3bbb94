"""What differs by device: the copier, and fences between the engine's stream and our threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moonpool.connector.layout import TensorView
from moonpool.connector.worker_half import Fence
from moonpool.store_client.copiers.base import DeviceCopier


def copier_for(device: Any) -> DeviceCopier | None:
    """The copier of a torch device; None for host memory, which the client copies by itself."""
    if device.type != "cuda":
        return None
    from moonpool.store_client.copiers.cuda import CudaCopier

    return CudaCopier(device.index or 0)


def fence_maker(device: Any) -> Callable[[], Fence]:
    """Makes fences in the engine's thread: each is over when all that was launched before it is done."""
    if device.type != "cuda":
        return lambda: _passed  # a CPU engine has computed by the time we are called
    import torch

    def record() -> Fence:
        event = torch.cuda.Event(blocking=True)  # waits without burning a core
        event.record(torch.cuda.current_stream(device))
        return event.synchronize  # type: ignore[no-any-return]

    return record


def thread_begin(device: Any) -> Callable[[], None] | None:
    """What each of our threads does first: picks its GPU."""
    if device.type != "cuda":
        return None
    import torch

    return lambda: torch.cuda.set_device(device)


def tensor_views(name: str, cache: Any) -> list[TensorView]:
    """A layer's KV cache, a torch tensor or a list of them, as numbers."""
    tensors = list(cache) if isinstance(cache, (list, tuple)) else [cache]
    return [
        TensorView(
            name,
            int(tensor.data_ptr()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.element_size()),
            str(tensor.dtype),
        )
        for tensor in tensors
    ]


def _passed() -> None:
    return None
