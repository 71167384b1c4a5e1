"""External jobs: their progress, polls and reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/external-jobs")
    async def jobs(request: Request, service: Operations) -> Response:
        asked = request.query_params
        page = await service.external_jobs.list(every="every" in asked, run_id=text(asked, "run_id"), before=text(asked, "before"))
        return await site.render(request, "external_jobs.html", service=service, page=page)

    @site.page("/external-jobs/{job_id}")
    async def job(request: Request, service: Operations) -> Response:
        found = await service.external_jobs.get(request.path_params["job_id"])
        return await site.render(request, "external_job.html", service=service, job=found)

    @site.action("/external-jobs/{job_id}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        job_id, form = request.path_params["job_id"], await request.form()
        match request.path_params["act"]:
            case "poll":
                done = await service.external_jobs.poll_now(job_id)
                return site.back(request, f"{done.external_job_id} will be polled as soon as a worker is free.")
            case "cancel":
                done = await service.external_jobs.cancel(job_id, reason=text(form, "reason"))
                return site.back(request, f"{done.external_job_id} is canceled; its service will be notified.")
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
