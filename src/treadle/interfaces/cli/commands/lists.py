"""`treadle lists ...`: show task lists, and pause, drain or limit them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.api.facade import Api
from treadle.api.lists import LimitChange
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.output.format import ago, grid, plain, state
from treadle.interfaces.cli.session import Session
from treadle.model.errors import InvalidInput
from treadle.model.lists import MOST_WORKERS, TARGET_LATENCY, Bucket, check_count, check_rate, parse_rate
from treadle.model.names import DEFAULT_LIST

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.lists import KeyLimit, LaneStatus, TaskListStatus

ListName = Annotated[str, argument(metavar="LIST", help="The task list's name")]

_REMOVABLE = ("max", "rate", "backlog")


async def list_lists(session: Session) -> None:
    """List the task lists with their tasks by handler and their limits."""
    async with session.api() as api:
        await _show(session, api, None)


async def show(session: Session, task_list: ListName) -> None:
    """Show one task list with its tasks by handler and its limits."""
    async with session.api() as api:
        await _show(session, api, task_list)


async def pause(session: Session, task_list: ListName) -> None:
    """Pause a list: workers take no more tasks from it; running tasks finish."""
    async with session.api() as api:
        await api.lists.pause(task_list)
        await _show(session, api, task_list)


async def resume(session: Session, task_list: ListName) -> None:
    """Resume a paused list, and let a draining one accept new tasks again."""
    async with session.api() as api:
        await api.lists.resume(task_list)
        await _show(session, api, task_list)


async def drain(session: Session, task_list: ListName) -> None:
    """Drain a list: it accepts no new tasks, and the existing ones run."""
    async with session.api() as api:
        await api.lists.drain(task_list)
        await _show(session, api, task_list)


async def policy(
    session: Session,
    task_list: ListName,
    no_handler: Annotated[str, argument(metavar="wait|ignore", help="Wait for a worker, or end the task as ignored")],
) -> None:
    """Set the treatment of tasks for which no live server has a handler."""
    async with session.api() as api:
        await api.lists.set_policy(task_list, no_handler)
        await _show(session, api, task_list)


async def limit(
    session: Session,
    key: Annotated[str | None, option(metavar="KEY", help="Tasks with this limit key, e.g. customer:42")] = None,
    handler: Annotated[str | None, option(metavar="NAME", help="Tasks of this handler")] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="With --rate and --backlog: in this list")] = DEFAULT_LIST,
    most: Annotated[
        int | None, option("--max", metavar="N", help="Maximum number of concurrently running tasks, over all workers")
    ] = None,
    rate: Annotated[str | None, option(metavar="R", help="Maximum number of tasks started per second, or 100/min, 5/hour")] = None,
    burst: Annotated[int | None, option(metavar="N", help="Maximum burst size (default: one second's worth of --rate)")] = None,
    backlog: Annotated[int | None, option(metavar="N", help="Reject new tasks while this many are ready")] = None,
    none: Annotated[list[str] | None, option(metavar="max|rate|backlog", help="Remove a limit; repeatable")] = None,
) -> None:
    """Limit concurrency, rate or backlog of a handler, or concurrency and rate of a limit key."""
    away = frozenset(none or ())
    per_second = None if rate is None else parse_rate(rate)
    _check(key, handler, away, {"max": most, "rate": per_second if rate is not None else burst, "backlog": backlog})
    check_rate(per_second, burst)
    for count, what in ((most, "--max"), (backlog, "--backlog")):
        if count is not None:
            check_count(count, what)
    async with session.api() as api:
        await LimitChange(key, handler, task_list, most, per_second, burst, backlog, away).apply(api.lists)
        await _show(session, api, None)


async def desired(
    session: Session,
    task_list: Annotated[str, argument(metavar="[LIST]", help="The task list's name")] = DEFAULT_LIST,
    handler: Annotated[str | None, option(metavar="NAME", help="Only tasks of this handler")] = None,
    target: Annotated[float, option(metavar="S", help="Seconds within which a ready task should start")] = TARGET_LATENCY,
    concurrency: Annotated[
        int | None, option(metavar="N", help="Concurrent tasks per worker; default: as the live workers")
    ] = None,
    least: Annotated[int, option("--min", metavar="N", help="Minimum number of workers")] = 0,
    most: Annotated[int, option("--max", metavar="N", help="Maximum number of workers")] = MOST_WORKERS,
) -> None:
    """Estimate the number of workers that a list needs, from its depth, age and task durations."""
    async with session.api() as api:
        found = await api.lists.desired(task_list, name=handler, target=target, concurrency=concurrency, least=least, most=most)
    session.show(found, lambda: plain(f"{found.desired}: {found.text}"))


def _check(key: str | None, handler: str | None, away: frozenset[str], given: dict[str, float | None]) -> None:
    """Reject contradictory options before anything is changed."""
    if (key is None) == (handler is None):
        raise InvalidInput("Give either --key KEY or --handler NAME.")
    if unknown := away.difference(_REMOVABLE):
        raise InvalidInput(f"--none takes {', '.join(_REMOVABLE)}, not {min(unknown)!r}.")
    wanted = away.union(name for name, value in given.items() if value is not None)
    if not wanted:
        raise InvalidInput("Give --max N, --rate R, --backlog N, or --none max|rate|backlog.")
    if both := [name for name in sorted(away) if given[name] is not None]:
        raise InvalidInput(f"Give either a {both[0]} or --none {both[0]}, not both.")
    if key is not None and "backlog" in wanted:
        raise InvalidInput("A key takes --max and --rate; a backlog belongs to a --handler in a --list.")


async def _show(session: Session, api: Api, task_list: str | None) -> None:
    found = (await api.lists.list()).lists if task_list is None else [await api.lists.get(task_list)]
    limits = (await api.lists.limits()).limits
    now = (await api.system.time()).now
    value = {"lists": to_builtins(found), "limits": to_builtins(limits)}
    session.show(value, lambda: _table(found, limits, now))


def _table(found: list[TaskListStatus], limits: list[KeyLimit], now: datetime) -> RenderableType:
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
    keys = grid("limit key", ">max", "rate", ">admitted", ">waiting", "next start", "set by", "handlers")
    for each in limits:
        most = "" if each.max_running is None else str(each.max_running)
        rate = "" if each.rate is None else Bucket(rate=each.rate, burst=each.burst).rate_text
        by = "operator" if each.by_operator or each.max_running is None else "enqueue"
        starts = "" if each.next_start_at is None or not each.waiting else ago(each.next_start_at, now)
        use = (str(each.admitted), str(each.waiting), starts, by)
        keys.add_row(plain(each.key), most, plain(rate), *use, plain(", ".join(each.handlers)))
    return Group(table, keys)


def _word(shown: TaskListStatus) -> str:
    words = ["paused" if shown.paused else "", "" if shown.accepting else "draining"]
    words.append("ignores unknown names" if shown.no_handler == "ignore" else "")
    return ", ".join(word for word in words if word) or "open"


def _rules(lane: LaneStatus) -> str:
    rate = Bucket(rate=lane.rate, burst=lane.burst).rate_text if lane.rate is not None else ""
    backlog = f"at most {lane.backlog_limit} ready" if lane.backlog_limit is not None else ""
    return "; ".join(part for part in (rate, backlog, f"limit {lane.limit_key}" if lane.limit_key else "") if part)
