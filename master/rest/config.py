"""The configuration in force."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moonpool.master.rest.access import Reader
from moonpool.master.rest.failures import responses
from moonpool.master.rest.paging import Cursor, Limit, Page, page_of
from moonpool.master.rest.views import Views

router = APIRouter(prefix="/api/v1", tags=["operations"], responses=responses())


class Setting(BaseModel):
    """One setting."""

    name: str = Field(examples=["http_port"])
    value: Any = Field(description="in force; secrets are masked", examples=[50080])
    origin: str = Field(description="where it came from", examples=["command line"])
    description: str = Field(examples=["port of the REST interface"])


@router.get("/config", summary="Settings in force")
async def config(views: Views, identity: Reader, cursor: Cursor = None, limit: Limit = 100) -> Page[Setting]:
    """Every setting of the master that answers, with the place it came from. Secrets are masked."""
    found = []
    for name, field in sorted(type(views.settings).model_fields.items()):
        value = getattr(views.settings, name)
        found.append(
            Setting(
                name=name,
                value=value if field.repr else ("***" if value else ""),
                origin=views.origins.get(name, "unknown"),
                description=field.description or "",
            )
        )
    return page_of(found, lambda setting: setting.name, cursor, limit)
