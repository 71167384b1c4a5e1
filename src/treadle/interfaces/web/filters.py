"""Template filters for times, sizes and JSON. They return plain text, which the template escapes."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from markupsafe import Markup

from treadle.api.system import StatusProblem
from treadle.kernel.search.query import Condition, Field, QueryGroup, print_query
from treadle.model.clock import span
from treadle.model.lists import Bucket
from treadle.model.runs import words
from treadle.model.tasks import evidence_text


def ago(at: datetime | None, now: datetime) -> str:
    """`3 s ago`, `in 5 min`, or a dash."""
    if at is None:
        return "–"
    passed = (now - at).total_seconds() * 1000
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(passed)}"


def tag_query(key: str, value: Any) -> str:
    """The query for all records with this tag."""
    return print_query(Condition(Field("tag", (key,)), "=", (value,)))


def after(at: datetime, for_ms: float) -> datetime:
    """The instant that many milliseconds later."""
    return at + timedelta(milliseconds=for_ms)


def stamp(at: datetime | None) -> str:
    """An instant for people."""
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def stamp_in(at: datetime, zone: str) -> str:
    """An instant in a time zone, for people."""
    return at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")


def iso(at: datetime | None) -> str:
    """An instant for machines."""
    return "" if at is None else at.isoformat().replace("+00:00", "Z")


def pretty(value: Any) -> str:
    """A JSON value, indented."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def count(number: float) -> str:
    """A number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", " ")


def size(number: float) -> str:
    """Bytes with a unit: `512 B`, `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{round(number, 0 if unit == 'B' else 1):g} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def short_id(value: str | None) -> str:
    """The end of an id, where ids differ."""
    return "" if value is None else value if len(value) < 14 else f"…{value[-8:]}"


_FRAME = re.compile(r'^  File "([^"]+)", line \d+.*\n(?:    .*\n)*', re.MULTILINE)
_FOREIGN = re.compile(r"(^|/)(site-packages|treadle|lib/python[\d.]+)/|^<frozen")


def own_frames(traceback: str) -> str:
    """The traceback without the frames of libraries, if others remain."""
    if all(_FOREIGN.search(frame[1]) for frame in _FRAME.finditer(traceback)):
        return traceback
    return _FRAME.sub(lambda frame: "" if _FOREIGN.search(frame[1]) else frame[0], traceback)


def leaf(path: str) -> str:
    """The end of a step's path, with the item that it is in: `[2].pay` of `Checkout.orders[2].pay`."""
    head, dot, name = path.rpartition(".")
    bracket = head.rfind("[")
    return f"{head[bracket:]}.{name}" if dot and head.endswith("]") and bracket >= 0 else name


def combine(first: dict[str, str], *others: dict[str, str]) -> dict[str, str]:
    """The merged dicts; the first one wins."""
    return {name: value for mapping in (*reversed(others), first) for name, value in mapping.items()}


ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_MARKED = re.compile(rf"`([^`]*)`|({ID})|({_INSTANT})")
_COMMAND = (
    r"`treadle (?:runs|tasks|lists|approvals|schedules|watchers|alerts|dlq|objectives|why|flows|token|external (?:list|cancel))\b"
)
_ON_PAGES, _ASIDE = re.compile(_COMMAND), re.compile(rf"(?:: | \(){_COMMAND}[^`]*`\)?(?=[.;, ]|$)")
_CLAUSE = re.compile(r"(; |\. (?=[A-Z`]))")


def message(text: object) -> Markup:
    """A message with ids as links, instants in words, and `commands` in code, without those for which pages have buttons."""
    parts = _CLAUSE.split(_ASIDE.sub("", str(text)))
    clauses = [(mark, clause) for mark, clause in zip(["", *parts[1::2]], parts[::2], strict=True) if not _ON_PAGES.search(clause)]
    if not clauses:
        return Markup("")
    sentence = clauses[0][1] + "".join(mark + clause for mark, clause in clauses[1:])
    markup, at = Markup(""), 0
    for match in _MARKED.finditer(sentence):
        markup += sentence[at : match.start()]
        at = match.end()
        if match[2]:
            markup += Markup('<a class="id" href="/go/{0}" title="{0}">{1}</a>').format(match[2], short_id(match[2]))
        elif match[3]:
            instant = match[3]
            markup += Markup('<time datetime="{}">{} UTC</time>').format(instant, instant[:19].replace("T", " "))
        else:
            markup += Markup("<code>{}</code>").format(match[1])
    return markup + sentence[at:]


_PROBLEM_PAGES = {
    "list": "/lists",
    "rate": "/lists",
    "queue": "/lists",
    "not": "/servers",
    "server": "/servers",
    "interpreter": "/servers",
    "schedule": "/schedules",
    "watcher": "/watchers",
    "function": "/runs",
    "runs": "/runs?state=paused",
    "tasks": "/tasks?state=paused",
    "engine": "/tasks",
    "polls": "/external-jobs",
    "dead": "/dead-letters",
    "effects": "/effects",
    "objectives": "/objectives",
    "notifications": "/alerts",
}


_FOR_PERSONS = frozenset({"dead_letters", "effects_unknown", "objectives_blocked"})


def severity(problem: StatusProblem) -> str:
    """`bad`: work does not continue; `hold`: it waits for a person; `quiet`: an operator paused or limited it on purpose."""
    is_intended = problem.code == "rate" or problem.code.endswith(("_paused", "_draining"))
    return "quiet" if is_intended else "hold" if problem.code in _FOR_PERSONS else "bad"


def problem_page(problem: StatusProblem) -> str | None:
    """The page on which to solve a problem of the status: the work, records or servers that are concerned."""
    if problem.code == "no_worker":
        lists = Condition(Field("list"), "in", tuple(problem.subjects))
        ready = QueryGroup("and", (Condition(Field("activity"), "=", ("ready",)), lists))
        return f"/tasks?{urlencode({'where': print_query(ready)})}"
    page = _PROBLEM_PAGES.get(problem.code.partition("_")[0])
    return page if page is None or problem.subject is None else f"{page}/{quote(problem.subject, safe='')}"


def tone(state: str) -> str:
    """The colour class of a state."""
    return _TONES.get(state.lower(), "quiet")


_TONES = {
    **dict.fromkeys(("completed", "approved", "done", "ok", "active", "succeeded", "pass", "resolved"), "good"),
    **dict.fromkeys(("failed", "lost", "error", "denied", "blocked", "fail", "firing"), "bad"),
    **dict.fromkeys(("running", "in_progress", "executed"), "busy"),
    **dict.fromkeys(("pending", "new", "todo", "created", "ready"), "wait"),
    **dict.fromkeys(("paused", "draining", "awaiting_external", "awaiting_approval", "expired", "waiting"), "hold"),
    **dict.fromkeys(("canceled", "ignored", "revoked", "stopped", "removed"), "gone"),
}


def rate(limit: Any) -> str:
    """The rate of a limit or queue, as the command line shows it."""
    return Bucket(rate=limit.rate, burst=limit.burst or 1).rate_text


ALL = {
    "rate": rate,
    "span": span,
    "evidence": evidence_text,
    "ago": ago,
    "after": after,
    "tag_query": tag_query,
    "stamp": stamp,
    "stamp_in": stamp_in,
    "iso": iso,
    "pretty": pretty,
    "count": count,
    "bytes": size,
    "short_id": short_id,
    "leaf": leaf,
    "own_frames": own_frames,
    "activity": words,
    "combine": combine,
    "tone": tone,
    "message": message,
    "problem_page": problem_page,
    "severity": severity,
}
