"""The CUDA copier over a runtime that fails where a test says: there is no device here, and streams can be counted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from moonpool.schemas.errors import TransferFailed
from moonpool.store_client.copiers import cuda
from moonpool.store_client.copiers.cuda import CudaCopier

FAILURE = 700
ONE = np.array([4096], dtype=np.uint64)


class Runtime:
    """Every call succeeds, but for those named in `failing`. `live`: handles that exist."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.live: set[int] = set()
        self.made = 0
        self.cudaGetErrorString: Callable[[int], bytes] = lambda code: b"an illegal memory access"

    def __getattr__(self, call: str) -> Callable[..., int]:
        def answer(*arguments: Any) -> int:
            if call in self.failing:
                return FAILURE
            if call == "cudaRuntimeGetVersion":
                arguments[0]._obj.value = 13000
            if call in ("cudaStreamCreateWithFlags", "cudaEventCreateWithFlags"):
                self.made += 1
                arguments[0]._obj.value = self.made
                self.live.add(self.made)
            if call in ("cudaStreamDestroy", "cudaEventDestroy"):
                assert isinstance(arguments[0], ctypes.c_void_p) and arguments[0].value is not None
                self.live.remove(arguments[0].value)
            return 0

        return answer


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(cuda, "_load_runtime", lambda: made)
    return made


def test_a_stream_is_used_again(runtime: Runtime) -> None:
    copier = CudaCopier(0)
    for _ in range(3):
        copier.to_engine(ONE, ONE, ONE)
    assert len(runtime.live) == runtime.made == 2


@pytest.mark.parametrize("call", ["cudaMemcpyBatchAsync", "cudaEventRecord", "cudaEventSynchronize"])
def test_a_copy_that_failed_leaves_no_stream(runtime: Runtime, call: str) -> None:
    copier = CudaCopier(0)
    runtime.failing = {call}
    for _ in range(20):
        with pytest.raises(TransferFailed, match=call):
            copier.from_engine(ONE, ONE, ONE)
        assert not runtime.live
    runtime.failing = set()
    copier.from_engine(ONE, ONE, ONE)
    assert len(runtime.live) == 2


def test_half_a_stream_is_none(runtime: Runtime) -> None:
    copier = CudaCopier(0)
    runtime.failing = {"cudaEventCreateWithFlags"}
    with pytest.raises(TransferFailed, match="EventCreate"):
        copier.to_engine(ONE, ONE, ONE)
    assert not runtime.live


def test_a_device_that_is_lost_does_not_hide_the_first_error(runtime: Runtime) -> None:
    """Nothing can be destroyed there any more."""
    copier = CudaCopier(0)
    runtime.failing = {"cudaMemcpyBatchAsync", "cudaStreamDestroy", "cudaEventDestroy"}
    with pytest.raises(TransferFailed, match="cudaMemcpyBatchAsync"):
        copier.to_engine(ONE, ONE, ONE)
