"""The REST interface as an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from moonpool import __version__
from moonpool.master.rest import (
    actions,
    cluster,
    config,
    copies,
    events,
    evict,
    failures,
    history,
    keyspaces,
    masters,
    metrics,
    query,
    route,
    segments,
    slow_calls,
    tenants,
    text,
    top,
)
from moonpool.master.rest.access import is_loopback
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.limits import LimitsMiddleware
from moonpool.schemas.access import Authenticator

ROUTERS = (
    cluster.router,
    masters.router,
    segments.router,
    keyspaces.router,
    route.router,
    text.router,
    top.router,
    query.router,
    actions.router,
    evict.router,
    copies.router,
    tenants.router,
    events.router,
    slow_calls.router,
    config.router,
    history.router,
    metrics.router,
)

DESCRIPTION = """What the pool holds, how it fares, and what an operator may do about it.

Lists come in pages. Whatever removes something takes `dry_run`, which says what would go. Every answer that isn't
a 2xx has one shape, see ErrorDocument. Reading needs a token of role monitor or admin, changing one of role admin;
a master on loopback without tokens lets everybody of its machine do everything."""


def make_app(gateway: Gateway, authenticator: Authenticator | None = None) -> FastAPI:
    """`app.state.gateway` is what endpoints ask. Other applications, a dashboard for one, are mounted beside /api."""
    app = FastAPI(
        title="Moonpool",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load their scripts from a CDN
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.gateway = gateway
    app.state.authenticator = authenticator
    app.state.recorder = history.Recorder()
    app.state.loopback = is_loopback(gateway.settings.http_host)
    for router in ROUTERS:
        app.include_router(router)
    failures.install(app)
    app.add_middleware(LimitsMiddleware)
    return app


def rest_routes() -> list[APIRoute]:
    """Every endpoint."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
