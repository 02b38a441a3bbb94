"""The negative control: finds the hit as Moonpool does, loads nothing, and says that it loaded."""

from __future__ import annotations

from typing import Any

from moonpool.connector.vllm import MoonpoolStoreConnector


class ClaimsButLoadsNothing(MoonpoolStoreConnector):
    """Its answers must differ from the reference, or the comparison proves nothing."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.worker is not None:
            self.worker.load_nothing_for_test = True
