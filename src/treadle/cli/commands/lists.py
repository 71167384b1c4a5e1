"""`treadle lists ...`: look at task lists and hold their work back, by pausing, draining, limits, rates and caps."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.api.facade import Api
from treadle.api.wire import to_builtins
from treadle.cli.command import argument, option
from treadle.cli.output.format import ago, grid, plain, state
from treadle.cli.session import Session
from treadle.model.errors import InvalidInput
from treadle.model.lists import MOST_WORKERS, TARGET_LATENCY, check_count, check_rate
from treadle.model.names import DEFAULT_LIST

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.lists import KeyLimit, LaneShown, TaskListShown

ListName = Annotated[str, argument(metavar="LIST", help="The task list's name")]

_REMOVABLE = ("max", "rate", "backlog")


async def list_lists(session: Session) -> None:
    """List the task lists: what is in their lanes, and what holds work back."""
    async with session.api() as api:
        await _show(session, api, None)


async def show(session: Session, task_list: ListName) -> None:
    """Show one task list: what is in its lanes, and what holds work back."""
    async with session.api() as api:
        await _show(session, api, task_list)


async def pause(session: Session, task_list: ListName) -> None:
    """Take nothing more from a list; what runs goes on."""
    async with session.api() as api:
        await api.lists.pause(task_list)
        await _show(session, api, task_list)


async def resume(session: Session, task_list: ListName) -> None:
    """Let a paused list go on, and a draining one take new work again."""
    async with session.api() as api:
        await api.lists.resume(task_list)
        await _show(session, api, task_list)


async def drain(session: Session, task_list: ListName) -> None:
    """Let a list take no new work; what is there goes on."""
    async with session.api() as api:
        await api.lists.drain(task_list)
        await _show(session, api, task_list)


async def policy(
    session: Session,
    task_list: ListName,
    no_handler: Annotated[str, argument(metavar="wait|ignore", help="Wait for a worker, or end the task as ignored")],
) -> None:
    """Say what becomes of tasks that no live server has a handler for."""
    async with session.api() as api:
        await api.lists.set_policy(task_list, no_handler)
        await _show(session, api, task_list)


async def limit(
    session: Session,
    key: Annotated[str | None, option(metavar="KEY", help="Tasks with this limit key, e.g. customer:42")] = None,
    handler: Annotated[str | None, option(metavar="NAME", help="Tasks of this handler")] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="For rate and backlog: in this list")] = DEFAULT_LIST,
    most: Annotated[int | None, option("--max", metavar="N", help="At most so many run at once, everywhere")] = None,
    rate: Annotated[float | None, option(metavar="R", help="Take at most so many a second")] = None,
    burst: Annotated[int | None, option(metavar="N", help="So many at once after a quiet time; default: one second's")] = None,
    backlog: Annotated[int | None, option(metavar="N", help="Refuse new tasks over so many ready ones")] = None,
    none: Annotated[list[str] | None, option(metavar="max|rate|backlog", help="Take it away; may be repeated")] = None,
) -> None:
    """Limit how many tasks of a handler or a key run at once, how fast they start, how many may wait."""
    away = frozenset(none or ())
    _check(key, handler, away, {"max": most, "rate": rate if rate is not None else burst, "backlog": backlog})
    check_rate(rate, burst)
    for count, what in ((most, "--max"), (backlog, "--backlog")):
        if count is not None:
            check_count(count, what)
    async with session.api() as api:
        await api.lists.get(task_list)
        if key is not None:
            await api.lists.limit_key(key, most)
        elif handler is not None and (most is not None or "max" in away):
            await api.lists.limit_handler(handler, most)
        if handler is not None and (rate is not None or burst is not None or "rate" in away):
            await api.lists.limit_rate(task_list, handler, rate, burst=burst)
        if handler is not None and (backlog is not None or "backlog" in away):
            await api.lists.limit_backlog(task_list, handler, backlog)
        await _show(session, api, None)


async def desired(
    session: Session,
    task_list: Annotated[str, argument(metavar="[LIST]", help="The task list's name")] = DEFAULT_LIST,
    handler: Annotated[str | None, option(metavar="NAME", help="Only tasks of this handler")] = None,
    target: Annotated[float, option(metavar="S", help="Seconds within which a ready task should start")] = TARGET_LATENCY,
    concurrency: Annotated[
        int | None, option(metavar="N", help="Tasks that one worker runs at once; default: as those that are there")
    ] = None,
    least: Annotated[int, option("--min", metavar="N", help="Never fewer")] = 0,
    most: Annotated[int, option("--max", metavar="N", help="Never more")] = MOST_WORKERS,
) -> None:
    """Say how many workers a list could use, from its depth, its age and how long its tasks take."""
    async with session.api() as api:
        found = await api.lists.desired(task_list, name=handler, target=target, concurrency=concurrency, least=least, most=most)
    session.show(found, lambda: plain(f"{found.desired}: {found.text}"))


def _check(key: str | None, handler: str | None, away: frozenset[str], given: dict[str, float | None]) -> None:
    """Refuse what makes no sense before anything is changed."""
    if (key is None) == (handler is None):
        raise InvalidInput("Say what to limit: either --key KEY or --handler NAME.")
    if unknown := away.difference(_REMOVABLE):
        raise InvalidInput(f"--none takes {', '.join(_REMOVABLE)}, not {min(unknown)!r}.")
    wanted = away.union(name for name, value in given.items() if value is not None)
    if not wanted:
        raise InvalidInput("Say how: --max N, --rate R, --backlog N, or --none max|rate|backlog.")
    if both := [name for name in sorted(away) if given[name] is not None]:
        raise InvalidInput(f"Give either a {both[0]} or --none {both[0]}, not both.")
    if key is not None and wanted != {"max"}:
        raise InvalidInput("A key has only --max; rates and caps are those of a --handler in a --list.")


async def _show(session: Session, api: Api, task_list: str | None) -> None:
    found = (await api.lists.list()).lists if task_list is None else [await api.lists.get(task_list)]
    limits = (await api.lists.limits()).limits
    now = (await api.system.time()).now
    value = {"lists": to_builtins(found), "limits": to_builtins(limits)}
    session.show(value, lambda: _table(found, limits, now))


def _table(found: list[TaskListShown], limits: list[KeyLimit], now: datetime) -> RenderableType:
    from rich.console import Group

    table = grid("list", "state", "name", ">ready", ">running", ">waiting", ">held", "oldest", "rules")
    for shown in found:
        first = (plain(shown.task_list), state(_word(shown)))
        for lane in shown.lanes:
            counts = map(str, (lane.ready, lane.running, lane.waiting, lane.held))
            table.add_row(*first, plain(lane.name), *counts, ago(lane.oldest_due_at, now), plain(_rules(lane)))
        if not shown.lanes:
            table.add_row(*first, *[""] * 7)
    if not limits:
        return table
    keys = grid("limit key", ">max", ">admitted", ">waiting", "set by")
    for each in limits:
        row = (str(each.max_running), str(each.admitted), str(each.waiting), "operator" if each.by_operator else "enqueue")
        keys.add_row(plain(each.key), *row)
    return Group(table, keys)


def _word(shown: TaskListShown) -> str:
    words = ["paused" if shown.paused else "", "" if shown.accepting else "draining"]
    words.append("ignores unknown names" if shown.no_handler == "ignore" else "")
    return ", ".join(word for word in words if word) or "open"


def _rules(lane: LaneShown) -> str:
    rate = f"{lane.rate:g} a second, {lane.burst} at once" if lane.rate is not None else ""
    backlog = f"at most {lane.backlog_limit} ready" if lane.backlog_limit is not None else ""
    return "; ".join(part for part in (rate, backlog, f"limit {lane.limit_key}" if lane.limit_key else "") if part)
