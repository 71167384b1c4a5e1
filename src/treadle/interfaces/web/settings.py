"""Settings: tokens, retention, and the health of the store and its log."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed, number, text, whole
from treadle.interfaces.web.site import Site
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput

PAGES_AT_ONCE = 10
"""Pages of histories, or steps of pruning, per request; the page then shows the progress and continues."""
_PROBLEMS = 50
_DAY = 86_400.0
_SCOPES = {
    Scope.READ: "look",
    Scope.ENQUEUE: "create work",
    Scope.WORK: "create and execute work",
    Scope.APPROVE: "decide approvals",
    Scope.OPERATE: "cancel, retry, pause, schedule",
    Scope.PUBLISH: "publish flows",
    Scope.REGISTER: "register Python handlers",
    Scope.ADMIN: "everything",
}
SUMS = ("trees", "tasks", "runs", "steps", "moves", "lines", "records", "freed")


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/settings")
    async def tokens(request: Request, service: Operations) -> Response:
        found = await if_allowed(service.tokens.list(every="every" in request.query_params))
        return await site.render(request, "settings_tokens.html", service=service, tokens=found, made=None, scopes=_SCOPES)

    @site.action("/settings/tokens")
    async def create(request: Request, service: Operations) -> Response:
        form = await request.form()
        days, name = number(form, "days"), text(form, "name")
        lists = (text(form, "task_lists") or "").replace(",", " ").split()
        scopes = [str(each) for each in form.getlist("scope")]
        made = await service.tokens.create(name or "", scopes, expires=None if days is None else days * _DAY, task_lists=lists)
        found = await service.tokens.list()
        return await site.render(request, "settings_tokens.html", service=service, tokens=found, made=made, scopes=_SCOPES)

    @site.action("/settings/tokens/{token}/revoke")
    async def revoke(request: Request, service: Operations) -> Response:
        done = await service.tokens.revoke(request.path_params["token"])
        return site.back(request, f"The token {done.name} is {done.state}.", to="/settings")

    @site.page("/settings/retention")
    async def retention(request: Request, service: Operations) -> Response:
        rules = await service.store.keeps()
        return await site.render(
            request, "settings_retention.html", service=service, rules=rules, pruned=None, dry=False, after=None
        )

    @site.action("/settings/retention")
    async def keep(request: Request, service: Operations) -> Response:
        form = await request.form()
        task_list = text(form, "task_list")
        if task_list is None:
            raise InvalidInput("Enter a task list.")
        completed, failed = number(form, "completed"), number(form, "failed")
        rule = await service.store.keep(
            task_list,
            completed=None if completed is None else completed * _DAY,
            failed=None if failed is None else failed * _DAY,
        )
        return site.back(request, f"{rule.task_list} now has its own retention rules.", to="/settings/retention")

    @site.action("/settings/prune")
    async def prune(request: Request, service: Operations) -> Response:
        form = await request.form()
        dry, after = "dry" in form, text(form, "after")
        sums = {name: whole(form, name) or 0 for name in SUMS}
        for _ in range(PAGES_AT_ONCE):
            step = await service.store.prune(dry_run=dry, after=after)
            sums = {name: so_far + getattr(step, name) for name, so_far in sums.items()}
            after = step.next_after
            if after is None:
                break
        rules = await service.store.keeps()
        return await site.render(
            request, "settings_retention.html", service=service, rules=rules, pruned=sums, dry=dry, after=after
        )

    @site.page("/settings/store")
    async def store(request: Request, service: Operations) -> Response:
        service.access.check(Scope.OPERATE)
        system = await if_allowed(service.system.status())
        calls = await service.store.calls()
        info = await service.store.info() if "measure" in request.query_params else None
        return await site.render(request, "settings_store.html", service=service, info=info, calls=calls, system=system)

    @site.action("/settings/verify")
    async def verify(request: Request, service: Operations) -> Response:
        form = await request.form()
        after, checked = text(form, "after"), whole(form, "checked") or 0
        problems = [str(each) for each in form.getlist("problem")]
        for _ in range(PAGES_AT_ONCE):
            page = await service.store.verify(after=after)
            checked, after = checked + page.checked, page.next_after
            problems = (problems + page.problems)[:_PROBLEMS]
            if after is None:
                break
        return await site.render(request, "settings_verify.html", service=service, checked=checked, problems=problems, after=after)
