"""Work outside: external jobs with their progress, and effects whose outcome is unknown."""

from __future__ import annotations

from treadle.interfaces.web.site import act, detail, listing

listing(
    "/external-jobs",
    "external_jobs.list",
    title="External jobs",
    note="Work in external services that tasks wait for; it occupies no worker.",
    hint="python examples/render_farm/show.py",
)
detail("/external-jobs/{job_id}", "external_jobs.get", "external_job")
act(
    "/external-jobs/{job_id}/poll",
    "external_jobs.poll_now",
    "{external_job_id} will be polled as soon as a worker is free.",
)
act(
    "/external-jobs/{job_id}/cancel",
    "external_jobs.cancel",
    "{external_job_id} is canceled; its service will be notified.",
)

listing(
    "/effects",
    "effects.list",
    title="Unknown effects",
    note="Calls to external systems that may or may not have happened, newest first. Look one up at its service with its dedupe "
    "key; a retry repeats it.",
    row="effect",
)
