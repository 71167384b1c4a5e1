"""Settings: tokens, retention, and the health of the store and its log."""

from __future__ import annotations

from starlette.responses import Response

from treadle.interfaces.web.forms import if_allowed, number, text, whole
from treadle.interfaces.web.site import Visit, act, action, page
from treadle.model.access import PRESET_DAYS, PRESETS, Scope
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
_FORM = {"scopes": _SCOPES, "presets": PRESETS, "days": PRESET_DAYS}
SUMS = ("trees", "tasks", "runs", "steps", "transitions", "lines", "records", "freed")


@page("/settings")
async def tokens(visit: Visit) -> Response:
    token_list = await if_allowed(visit.api.tokens.list(every="every" in visit.query))
    return await visit.render("settings_tokens.html", tokens=token_list, made=None, **_FORM)


@action("/settings/tokens")
async def create(visit: Visit) -> Response:
    form = await visit.form()
    days, name = number(form, "expires"), text(form, "name")
    lists = (text(form, "task_lists") or "").replace(",", " ").split()
    scopes = [str(scope) for scope in form.getlist("scope")] or PRESETS.get(text(form, "preset") or "", ())
    created = await visit.api.tokens.create(name or "", scopes, expires=None if days is None else days * _DAY, task_lists=lists)
    token_list = await visit.api.tokens.list()
    return await visit.render("settings_tokens.html", tokens=token_list, made=created, **_FORM)


act("/settings/tokens/{token}/revoke", "tokens.revoke", "The token {name} is {state}.", to="/settings")


@page("/settings/retention")
async def retention(visit: Visit) -> Response:
    rules = await visit.api.store.keeps()
    return await visit.render("settings_retention.html", rules=rules, pruned=None, dry=False, after=None)


@action("/settings/retention")
async def keep(visit: Visit) -> Response:
    form = await visit.form()
    task_list = text(form, "task_list")
    if task_list is None:
        raise InvalidInput("Enter a task list.")
    completed, failed = number(form, "completed"), number(form, "failed")
    rule = await visit.api.store.keep(
        task_list,
        completed=None if completed is None else completed * _DAY,
        failed=None if failed is None else failed * _DAY,
    )
    return visit.back(f"{rule.task_list} now has its own retention rules.", to="/settings/retention")


@action("/settings/prune")
async def prune(visit: Visit) -> Response:
    form = await visit.form()
    dry, after = "dry" in form, text(form, "after")
    sums = {name: whole(form, name) or 0 for name in SUMS}
    for _ in range(PAGES_AT_ONCE):
        step = await visit.api.store.prune(dry_run=dry, after=after)
        sums = {name: so_far + getattr(step, name) for name, so_far in sums.items()}
        after = step.next_after
        if after is None:
            break
    rules = await visit.api.store.keeps()
    return await visit.render("settings_retention.html", rules=rules, pruned=sums, dry=dry, after=after)


@page("/settings/store")
async def store(visit: Visit) -> Response:
    visit.api.access.check(Scope.OPERATE)
    system = await if_allowed(visit.api.system.status())
    calls = await visit.api.store.calls()
    info = await visit.api.store.info() if "measure" in visit.query else None
    return await visit.render("settings_store.html", info=info, calls=calls, system=system)


@action("/settings/verify")
async def verify(visit: Visit) -> Response:
    form = await visit.form()
    after, checked = text(form, "after"), whole(form, "checked") or 0
    problems = [str(problem) for problem in form.getlist("problem")]
    for _ in range(PAGES_AT_ONCE):
        page = await visit.api.store.verify(after=after)
        checked, after = checked + page.checked, page.next_after
        problems = (problems + page.problems)[:_PROBLEMS]
        if after is None:
            break
    return await visit.render("settings_verify.html", checked=checked, problems=problems, after=after)
