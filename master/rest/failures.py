"""Every failure in one JSON shape: {"error": {"code", "name", "message", "details"}}."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from moonpool.schemas.errors import (
    BadInput,
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidParams,
    KeyspaceUnknown,
    Miss,
    MoonpoolError,
    Overloaded,
    Refused,
    TooLarge,
    Unauthorized,
    Unreachable,
)

log = logging.getLogger(__name__)

STATUSES: tuple[tuple[type[MoonpoolError], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (Overloaded, 503),
    (TooLarge, 413),
    (KeyspaceUnknown, 404),
    (BadInput, 400),
    (Miss, 404),
    (Refused, 409),
    (DeadlineExceeded, 504),
    (Unreachable, 503),
)
"""HTTP status by class of error; the first that fits. Others: 500."""


class ErrorFacts(BaseModel):
    """What went wrong."""

    code: int = Field(description="the error's number, as in docs/errors.md", examples=[-704])
    name: str = Field(description="its class there", examples=["NotFound"])
    message: str = Field(description="a sentence for people", examples=["node n9 is not in the pool"])
    details: dict[str, Any] = Field(description="the facts in that sentence", examples=[{"key": "node n9"}])


class ErrorDocument(BaseModel):
    """Every answer that isn't a 2xx."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "code": -704,
                        "name": "NotFound",
                        "message": "node n9 is not in the pool",
                        "details": {"key": "node n9"},
                    }
                }
            ]
        }
    )

    error: ErrorFacts


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a router's `responses`: those that any endpoint may give, and `statuses`."""
    words = {
        400: "The request says something that isn't allowed.",
        401: "A token is needed.",
        403: "The token's role may not do this.",
        404: "There is no such thing.",
        409: "Refused as things are now.",
        413: "The body is too large.",
        422: "A field is missing, or isn't of its type.",
        503: "The master can't answer now.",
        504: "The master took too long.",
    }
    always = (400, 401, 403, 413, 422, 503, 504)
    return {
        status: {"model": ErrorDocument, "description": words[status]}
        for status in sorted({*always, *statuses})
    }


def document(error: MoonpoolError) -> dict[str, Any]:
    """An error as JSON."""
    details = {name: _plain(value) for name, value in error.facts.items()}
    facts = {
        "code": error.code,
        "name": type(error).__name__,
        "message": str(error),
        "details": details,
    }
    return {"error": facts}


def status_of(error: MoonpoolError) -> int:
    """The HTTP status of an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def install(app: FastAPI) -> None:
    """Makes every failure of the app look like this."""

    @app.exception_handler(MoonpoolError)
    async def known(request: Request, error: MoonpoolError) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else None
        return JSONResponse(document(error), status_of(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field, value, allowed = ".".join(str(part) for part in first["loc"]), first.get("input"), first["msg"]
        if isinstance(value, bytes):
            allowed = "JSON, with the header content-type: application/json"
            value = request.headers.get("content-type", "of no content-type")
        bad = InvalidParams(field=field, value=_plain(value), allowed=allowed)
        return JSONResponse(document(bad), 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            where = "those of /api/v1/openapi.json, /metrics, and /ui where there is a dashboard"
            found = InvalidParams(field="path", value=request.url.path[:200], allowed=where)
        else:
            detail = str(error.detail)
            found = InvalidParams(field="request", value=request.method, allowed=detail)
        return JSONResponse(document(found), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("REST: %s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(document(InternalError(detail=f"a bug: {error!r}"[:500])), 500)


def _plain(value: object) -> Any:
    """A fact as JSON can say it, cut where it is long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value[:16]]
    return str(value)[:500]
