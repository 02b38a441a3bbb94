"""The dashboard's way to the pool: the REST interface of the same process, with the visitor's own rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import FastAPI, Request

from moonpool.master.ui.sessions import token_of

TIMEOUT_S = 12.0

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """What the REST interface answered instead."""

    status: int
    message: str

    def __str__(self) -> str:
        return self.message


class Api:
    """For one visitor of one page. No socket is between the dashboard and the REST interface."""

    def __init__(self, app: FastAPI, request: Request) -> None:
        headers = {"host": request.headers.get("host", "")}
        if token := token_of(request):
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://moonpool/api/v1",
            headers=headers,
            timeout=TIMEOUT_S,
            trust_env=False,
        )

    async def get(self, path: str, **params: Any) -> Document:
        """A document. Raises Refusal."""
        return await self._ask("GET", path, params=_given(params))

    async def items(self, path: str, **params: Any) -> list[Document]:
        """The first page of a list. Raises Refusal."""
        found: list[Document] = (await self.get(path, **params))["items"]
        return found

    async def act(self, path: str, body: Document) -> Document:
        """Changes something. Raises Refusal."""
        return await self._ask("POST", path, json=body)

    async def tenant(self, method: str, name: str, **arguments: Any) -> Document:
        """PUT or DELETE of a tenant. Raises Refusal."""
        return await self._ask(method, f"/tenants/{quote(name, safe='')}", **arguments)

    async def _ask(self, method: str, path: str, **arguments: Any) -> Document:
        answer = await self._client.request(method, path, **arguments)
        if answer.is_success:
            found: Document = answer.json() if answer.content else {}
            return found
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"{method} {path} was answered {answer.status_code}"
        raise Refusal(answer.status_code, message)


def _given(params: Document) -> Document:
    return {name: value for name, value in params.items() if value not in (None, "")}
