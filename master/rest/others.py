"""The other masters of a cluster, asked for their part of an answer through their own REST interfaces.

A question goes on as it came, with the visitor's own token: each master decides itself what that may see and do, and no master
holds a token of its own. A master that was asked by another answers for itself alone.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, Field, ValidationError

from moonpool.master.membership.view import Member
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.paging import LIMIT_MAX
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import KeyspaceUnknown, Miss, MoonpoolError, RpcFailed
from moonpool.store_client.rpc.tls import ClientTls

if TYPE_CHECKING:
    import httpx

Document = dict[str, Any]
Params = Callable[[str], Mapping[str, str]]
Model = TypeVar("Model", bound=BaseModel)
Own = TypeVar("Own")

HOP = "x-moonpool-own-part"
"""Header of a question of another master. Anybody may set it, and gets less then."""

ASKED_AT_ONCE = 16
LOOK_TIMEOUT_S = 3.0
ACT_TIMEOUT_S = 25.0
"""Nodes may have to confirm what is done: more than their longest wait, less than the whole answer may take."""

PAGES_MAX = 16
BYTES_MAX = 16 << 20
NOWHERE = 404


class Unanswered(BaseModel):
    """A master whose part is missing in an answer."""

    master: str = Field(examples=["10.0.0.7:50051"])
    http: str = Field(description="its REST address; empty: none is known", examples=["http://10.0.0.7:8080"])
    reason: str = Field(examples=["no answer within 3 s"])


UNANSWERED: list[Unanswered] = Field(
    [], description="masters whose part is missing here, and why", examples=[[]]
)


class _NoPart(Exception):
    """Why a master's part is missing."""


@dataclass(slots=True)
class Parts(Generic[Model]):
    """What the masters that answered have said, and the others."""

    found: list[Model] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)


class OtherMasters:
    """Of one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._gateway: Gateway = request.app.state.gateway
        self.asked_by_master = HOP in request.headers

    async def items(self, model: type[Model]) -> Parts[Model]:
        """The items of the same list at all others."""

        async def all_pages(client: httpx.AsyncClient, member: Member) -> list[Model]:
            found: list[Model] = []
            cursor: str | None = None
            for _ in range(PAGES_MAX):
                params = {**self._request.query_params, "limit": str(LIMIT_MAX)}
                params.pop("cursor", None)
                page = await self._ask(client, member, params | ({"cursor": cursor} if cursor else {}))
                found += [model.model_validate(item) for item in page["items"]]
                cursor = page["next_cursor"]
                if cursor is None:
                    return found
            raise _NoPart(f"its list has over {PAGES_MAX} pages")

        return await self._of_all(all_pages, LOOK_TIMEOUT_S)

    async def documents(
        self,
        model: type[Model],
        body: BaseModel | None = None,
        *,
        timeout_s: float = LOOK_TIMEOUT_S,
        path: str = "",
        params: Params | None = None,
        only: str = "",
    ) -> Parts[Model]:
        """What all others answer to the same request; those that know nothing of the thing are left out. `path` and
        `params`, by a master's address: instead of this request's. `only`: the address of the one to ask."""
        text = body.model_dump_json() if body is not None else ""

        async def one(client: httpx.AsyncClient, member: Member) -> list[Model]:
            said = dict(self._request.query_params) if params is None else params(member.address)
            document = await self._ask(client, member, said, text, path)
            return [model.model_validate(document)] if document else []

        return await self._of_all(one, timeout_s, only)

    async def addresses(self) -> list[str]:
        """Of the masters that would be asked."""
        return [member.address for member in await self._members()]

    async def _members(self) -> list[Member]:
        if self.asked_by_master:
            return []
        return await self._gateway.read(lambda master: list(master.handler.others))

    async def _of_all(
        self,
        ask: Callable[[httpx.AsyncClient, Member], Awaitable[list[Model]]],
        timeout_s: float,
        only: str = "",
    ) -> Parts[Model]:
        parts: Parts[Model] = Parts()
        members = [member for member in await self._members() if only in ("", member.address)]
        if not members:
            return parts
        import httpx

        turns = asyncio.Semaphore(ASKED_AT_ONCE)
        secure = any(member.http.startswith("https:") for member in members)
        verify = _trust(self._gateway.settings) if secure else False

        async def bounded(client: httpx.AsyncClient, member: Member) -> list[Model] | Unanswered:
            try:
                if not member.http:
                    raise _NoPart("it has no REST interface that others reach")
                async with asyncio.timeout(timeout_s), turns:
                    return await ask(client, member)
            except TimeoutError:
                reason = f"no answer within {timeout_s:g} s"
            except (_NoPart, httpx.HTTPError, MoonpoolError) as error:
                reason = str(error) or type(error).__name__
            except (ValidationError, ValueError, KeyError, TypeError):
                reason = "its answer isn't of this version's form"
            return Unanswered(master=member.address, http=member.http, reason=reason[:500])

        async with httpx.AsyncClient(verify=verify, timeout=timeout_s, trust_env=False) as client:
            answers = await asyncio.gather(*(bounded(client, member) for member in members))
        for answer in answers:
            if isinstance(answer, Unanswered):
                parts.unanswered.append(answer)
            else:
                parts.found += answer
        return parts

    async def _ask(
        self,
        client: httpx.AsyncClient,
        member: Member,
        params: Mapping[str, str],
        body: str = "",
        path: str = "",
    ) -> Document:
        """Its answer; empty where it knows nothing of the thing."""
        request, headers = self._request, {HOP: "1"}
        if token := request.headers.get("authorization"):
            headers["authorization"] = token
        if body:
            headers["content-type"] = "application/json"
        url = member.http + (path or request.url.path)
        method = "POST" if path and body else request.method
        async with client.stream(method, url, params=params, content=body or None, headers=headers) as answer:
            raw = bytearray()
            async for piece in answer.aiter_bytes():
                raw += piece
                if len(raw) > BYTES_MAX:
                    raise _NoPart(f"its answer has over {BYTES_MAX} bytes")
        if answer.status_code == NOWHERE:
            return {}
        document: Document = json.loads(raw)
        if not answer.is_success:
            raise _NoPart(f"{answer.status_code}: {document['error']['message']}")
        return document


def _trust(settings: MasterSettings) -> ssl.SSLContext:
    """What other masters' certificates are checked against. Raises ConfigError."""
    if settings.tls_ca:
        return ClientTls(settings.tls_ca, settings.tls_cert, settings.tls_key, verify_host=True).context()
    return ssl.create_default_context()


async def with_own(own: Awaitable[Own], others: Awaitable[Parts[Model]]) -> tuple[Own | None, Parts[Model]]:
    """This master's part and those of the others; None where this one knows nothing of the thing, and others do.
    Raises what the own part raises; RpcFailed where nobody knows the thing, and not all masters could be asked."""

    async def here() -> Own | Miss | KeyspaceUnknown:
        try:
            return await own
        except (Miss, KeyspaceUnknown) as error:
            return error

    mine, parts = await asyncio.gather(here(), others)
    if not isinstance(mine, (Miss, KeyspaceUnknown)):
        return mine, parts
    if parts.found:
        return None, parts
    if parts.unanswered:
        names = ", ".join(f"{one.master} ({one.http or 'no REST'})" for one in parts.unanswered)
        reason = f"it can't be asked ({parts.unanswered[0].reason}), and no other master knows this"
        raise RpcFailed(peer=names, reason=reason)
    raise mine


Others = Annotated[OtherMasters, Depends(OtherMasters)]
"""The other masters, for this request."""
