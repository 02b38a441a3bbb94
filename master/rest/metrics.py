"""`/metrics`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from moonpool.master.metrics import master_samples
from moonpool.master.rest.access import Reader
from moonpool.master.rest.failures import responses
from moonpool.master.rest.views import Views
from moonpool.store_client.exposition import render

router = APIRouter(tags=["metrics"], responses=responses())


@router.get("/metrics", summary="Metrics of this master", response_class=Response)
async def metrics(views: Views, identity: Reader, request: Request) -> Response:
    """For Prometheus: every metric of docs/metrics.md whose name begins with moonpool_master."""
    samples = await views.read(master_samples)
    page, content_type = render(samples, request.headers.get("accept", ""))
    return Response(page, media_type=content_type)
