"""What endpoints ask: one dependency, so that an endpoint never holds the master itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from moonpool.master.rest.gateway import Gateway


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


Views = Annotated[Gateway, Depends(_gateway)]
