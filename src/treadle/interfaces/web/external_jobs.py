"""Work outside: external jobs with their progress, and effects whose outcome is unknown."""

from __future__ import annotations

from starlette.responses import Response

from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Visit, act, page


@page("/external-jobs")
async def jobs(visit: Visit) -> Response:
    asked = visit.query
    page = await visit.api.external_jobs.list(every="every" in asked, run_id=text(asked, "run_id"), before=text(asked, "before"))
    return await visit.render("external_jobs.html", page=page)


@page("/external-jobs/{job_id}")
async def job(visit: Visit) -> Response:
    found = await visit.api.external_jobs.get(visit.path["job_id"])
    return await visit.render("external_job.html", job=found)


act(
    "/external-jobs/{job_id}/poll",
    "external_jobs.poll_now",
    "{external_job_id} will be polled as soon as a worker is free.",
)
act(
    "/external-jobs/{job_id}/cancel",
    "external_jobs.cancel",
    "{external_job_id} is canceled; its service will be notified.",
    takes="reason",
)


@page("/effects")
async def effects(visit: Visit) -> Response:
    asked = visit.query
    page = await visit.api.effects.list(task_id=text(asked, "task_id"), run_id=text(asked, "run_id"), before=text(asked, "before"))
    return await visit.render("effects.html", page=page)
