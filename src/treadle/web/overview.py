"""The overview: whether all is well, what moves, and what needs a person."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from treadle.service import Service
from treadle.web.site import Site


def add(site: Site) -> None:
    """Register the page."""

    @site.page("/")
    async def overview(request: Request, service: Service) -> Response:
        recent = await service.tasks.list(limit=10)
        return await site.render(request, "overview.html", service=service, recent=recent)
