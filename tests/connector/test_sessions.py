"""The session that a request belongs to goes with its puts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.connector_engine import FakeEngine
from support.connector_parts import Request

from moonpool.connector.fake_pool import FakePool
from moonpool.connector.pool_client import BlockPut
from moonpool.connector.tracked import SESSION_CHARACTERS_MAX, session_of
from moonpool.schemas.packed import U8


class NotingPool(FakePool):
    """Keeps the names that come with puts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[tuple[str, str]] = set()

    def put_blocks(self, puts: Sequence[BlockPut], *, timeout_s: float | None = None) -> list[U8]:
        self.names |= {(put.request_id, put.session_id) for put in puts}
        return super().put_blocks(puts, timeout_s=timeout_s)


class ChatRequest(Request):
    """One that says what it belongs to."""

    session_id = "chat-9"


def test_puts_name_request_and_session() -> None:
    pool = NotingPool()
    engine = FakeEngine(pool)
    engine.add(ChatRequest("a", list(range(40)), 1))
    engine.add(Request("b", list(range(100, 140)), 1))
    engine.run()
    assert pool.names == {("a", "chat-9"), ("b", "")}


@pytest.mark.parametrize(
    ("facts", "session"),
    [
        ({}, ""),
        ({"kv_transfer_params": None, "session_id": None}, ""),
        ({"kv_transfer_params": {"session_id": "s"}, "session_id": "t"}, "s"),
        ({"kv_transfer_params": {"do_remote_decode": True}, "session_id": "t"}, "t"),
        ({"kv_transfer_params": {"session_id": ["s"]}}, ""),
        ({"kv_transfer_params": {"session_id": "s" * 1000}}, "s" * SESSION_CHARACTERS_MAX),
    ],
)
def test_where_a_session_is_named(facts: dict[str, Any], session: str) -> None:
    request: Any = SimpleNamespace(**facts)
    assert session_of(request) == session
