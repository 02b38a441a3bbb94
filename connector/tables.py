"""Block tables of scheduled requests: vLLM's own from 0.29 on, before that a copy kept from its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moonpool.connector.tracked import BlockTable


class BlockTables:
    """The copy is right for full attention only, whose tables just grow. group_plan() sees to that."""

    def __init__(self) -> None:
        self._copies: dict[str, list[list[int]]] = {}

    def of_step(self, scheduler_output: Any) -> Callable[[str], BlockTable | None]:
        """Looks tables up, for this step."""
        state = getattr(scheduler_output, "kv_connector_block_state", None)
        if state is not None:
            lookup: Callable[[str], BlockTable | None] = state.get_block_ids
            return lookup
        for new in scheduler_output.scheduled_new_reqs:
            self._copies[new.req_id] = [list(ids) for ids in new.block_ids]
        cached = scheduler_output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", ())
        for request_id, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_ids is None:
                continue
            if request_id in resumed or request_id not in self._copies:
                self._copies[request_id] = [list(ids) for ids in new_ids]
            else:
                for copy, ids in zip(self._copies[request_id], new_ids, strict=True):
                    copy.extend(ids)
        return self._copies.get

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._copies.pop(request_id, None)
