"""Dead letters: grouped by cause, retried and discarded; bulk actions show a preview first."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.dead_letters import BATCH, DeadLettersChanged
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import Fields, number, text, whole
from treadle.interfaces.web.site import NoSuchPage, Site
from treadle.model.access import Scope
from treadle.model.errors import TreadleError

AT_ONCE = 10
"""Batches of `BATCH` letters that one request changes; the page then shows the progress and continues."""
_EXAMPLES = 10
WORDS = {"retry": "retried", "discard": "discarded"}


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/dead-letters")
    async def groups(request: Request, service: Operations) -> Response:
        asked = request.query_params
        found = (await service.dead_letters.groups(**_filter(asked))).groups
        if text(asked, "fingerprint") is None:
            return await site.render(request, "dead_letters.html", service=service, groups=found, filter=_entered(asked))
        page = await service.dead_letters.list(**_filter(asked), before=whole(asked, "before"))
        return await site.render(request, "dead_group.html", service=service, groups=found, page=page, filter=_entered(asked))

    @site.page("/dead-letters/{act}")
    async def preview(request: Request, service: Operations) -> Response:
        act, asked = request.path_params["act"], request.query_params
        if act not in WORDS:
            raise NoSuchPage(request.url.path)
        service.access.check(Scope.OPERATE)
        which, after = _filter(asked), text(asked, "after")
        would: DeadLettersChanged | None = None
        refusal: TreadleError | None = None
        try:
            would = None if after else await _change(service, act, which, dry_run=True)
        except TreadleError as error:
            refusal = error
        examples = [] if after else (await service.dead_letters.list(**which, limit=_EXAMPLES)).letters
        return await site.render(
            request,
            "dead_bulk.html",
            service=service,
            act=act,
            word=WORDS[act],
            would=would,
            refusal=refusal,
            examples=examples,
            filter=_entered(asked),
            after=after,
            done=whole(asked, "done") or 0,
        )

    @site.action("/dead-letters/{act}")
    async def act(request: Request, service: Operations) -> Response:
        act, form = request.path_params["act"], await request.form()
        if act not in WORDS:
            raise NoSuchPage(request.url.path)
        if ids := [str(each) for each in form.getlist("id")]:
            some = await (service.dead_letters.retry if act == "retry" else service.dead_letters.discard)(ids=ids)
            return site.back(request, _summary(some.done, some.of_runs, some.passed_over, WORDS[act]))
        which, after, done = _filter(form), text(form, "after"), whole(form, "done") or 0
        of_runs = passed_over = 0
        for _ in range(AT_ONCE):
            changed = await _change(service, act, which, limit=BATCH, after=after)
            done, after = done + changed.done, changed.next_after
            of_runs, passed_over = of_runs + changed.of_runs, passed_over + changed.passed_over
            if after is None:
                return site.back(request, _summary(done, of_runs, passed_over, WORDS[act]), to="/dead-letters")
        rest = urlencode({**_entered(form), "after": after, "done": done})
        return site.back(request, f"{done} {WORDS[act]}; more remain.", to=f"/dead-letters/{act}?{rest}")


async def _change(service: Operations, act: str, which: dict[str, Any], **options: Any) -> DeadLettersChanged:
    change = service.dead_letters.retry if act == "retry" else service.dead_letters.discard
    return await change(**which, everything=not any(value is not None for value in which.values()), **options)


def _filter(fields: Fields) -> dict[str, Any]:
    words = {name: text(fields, name) for name in ("name", "task_list", "error_code", "fingerprint")}
    return {**words, "newer_than": number(fields, "newer_than"), "older_than": number(fields, "older_than")}


def _entered(fields: Fields) -> dict[str, str]:
    """The filter as entered."""
    names = ("name", "task_list", "error_code", "fingerprint", "newer_than", "older_than")
    return {name: typed for name in names if (typed := text(fields, name))}


def _summary(done: int, of_runs: int, passed_over: int, word: str) -> str:
    parts = [f"{done} {'letter' if done == 1 else 'letters'} {word}."]
    if of_runs:
        parts.append(f"{of_runs} of them with their runs.")
    if passed_over:
        parts.append(f"{passed_over} skipped: changed meanwhile, or of runs that cannot be retried.")
    return " ".join(parts)
