"""Dead letters: grouped by cause, retried and discarded; bulk actions show a preview first."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.dead_letters import BATCH, DeadLetterConditions, DeadLettersChanged
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import Fields, arguments_of, text, whole
from treadle.interfaces.web.site import Visit, action, no_page, page
from treadle.model.access import Scope
from treadle.model.errors import TreadleError

AT_ONCE = 10
"""Batches of `BATCH` letters that one request changes; the page then shows the progress and continues."""
_EXAMPLES = 10
_CONDITIONS = option_fields(DeadLetterConditions)
WORDS = {"retry": "retried", "discard": "discarded"}


@page("/dead-letters")
async def groups(visit: Visit) -> Response:
    query = visit.query
    causes = (await visit.api.dead_letters.groups(**_filter(query))).groups
    if text(query, "fingerprint") is None:
        return await visit.render("dead_letters.html", groups=causes, filter=_entered(query))
    page = await visit.api.dead_letters.list(**_filter(query), before=whole(query, "before"))
    return await visit.render("dead_group.html", groups=causes, page=page, filter=_entered(query))


@page("/dead-letters/{act}")
async def preview(visit: Visit) -> Response:
    act, query = visit.path["act"], visit.query
    if act not in WORDS:
        raise no_page(visit.request.url.path)
    visit.api.access.check(Scope.OPERATE)
    which, after = _filter(query), text(query, "after")
    would: DeadLettersChanged | None = None
    refusal: TreadleError | None = None
    try:
        would = None if after else await _change(visit.api, act, which, dry_run=True)
    except TreadleError as error:
        refusal = error
    examples = [] if after else (await visit.api.dead_letters.list(**which, limit=_EXAMPLES)).letters
    return await visit.render(
        "dead_bulk.html",
        act=act,
        word=WORDS[act],
        would=would,
        refusal=refusal,
        examples=examples,
        filter=_entered(query),
        after=after,
        done=whole(query, "done") or 0,
    )


@action("/dead-letters/{act}")
async def act(visit: Visit) -> Response:
    act, form = visit.path["act"], await visit.form()
    if act not in WORDS:
        raise no_page(visit.request.url.path)
    if ids := [str(letter_id) for letter_id in form.getlist("id")]:
        some = await (visit.api.dead_letters.retry if act == "retry" else visit.api.dead_letters.discard)(ids=ids)
        return visit.back(_summary(some.done, some.of_runs, some.passed_over, WORDS[act]))
    which, after, done = _filter(form), text(form, "after"), whole(form, "done") or 0
    of_runs = passed_over = 0
    for _ in range(AT_ONCE):
        changed = await _change(visit.api, act, which, limit=BATCH, after=after)
        done, after = done + changed.done, changed.next_after
        of_runs, passed_over = of_runs + changed.of_runs, passed_over + changed.passed_over
        if after is None:
            return visit.back(_summary(done, of_runs, passed_over, WORDS[act]), to="/dead-letters")
    rest = urlencode({**_entered(form), "after": after, "done": done})
    return visit.back(f"{done} {WORDS[act]}; more remain.", to=f"/dead-letters/{act}?{rest}")


async def _change(service: Operations, act: str, which: dict[str, Any], **options: Any) -> DeadLettersChanged:
    change = service.dead_letters.retry if act == "retry" else service.dead_letters.discard
    return await change(**which, everything=not which, **options)


def _filter(fields: Fields) -> dict[str, Any]:
    return arguments_of(fields, _CONDITIONS)


def _entered(fields: Fields) -> dict[str, str]:
    """The filter as entered."""
    return {condition.name: typed for condition in _CONDITIONS if (typed := text(fields, condition.name))}


def _summary(done: int, of_runs: int, passed_over: int, word: str) -> str:
    parts = [f"{done} {'letter' if done == 1 else 'letters'} {word}."]
    if of_runs:
        parts.append(f"{of_runs} of them with their runs.")
    if passed_over:
        parts.append(f"{passed_over} skipped: changed meanwhile, or of runs that cannot be retried.")
    return " ".join(parts)
