"""The negative control: finds the hit as Moonpool does, loads nothing, and says that it loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from moonpool.connector import MoonpoolStoreConnector
from moonpool.schemas.packed import U8
from moonpool.store_client import BlockGet


def claim(get: BlockGet, **keywords: Any) -> U8:
    """Every block loaded, so it says."""
    return np.zeros(get.into.count, dtype=np.uint8)


class ClaimsButLoadsNothing(MoonpoolStoreConnector):  # type: ignore[misc]
    """Its answers must differ from the reference, or the comparison proves nothing."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        assert self._worker is not None
        self._worker._client.get_blocks = claim
