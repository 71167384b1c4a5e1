"""`treadle lists ...`: show task lists, and pause, drain or limit them."""

from __future__ import annotations

from typing import Annotated

from treadle.api.facade import Api
from treadle.api.lists import LIMIT, LIST, LimitChange, TaskLists, TaskListStatus
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.format import details, table, together
from treadle.interfaces.cli.session import Session
from treadle.model.errors import InvalidInput
from treadle.model.lists import check_count, check_rate, parse_rate
from treadle.model.names import DEFAULT_LIST

_REMOVABLE = ("max", "rate", "backlog")


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
        await show_lists(session, api, await api.lists.list())


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


async def show_lists(session: Session, api: Api, result: TaskLists | TaskListStatus) -> None:
    """Show task lists with their tasks by handler, and all limits of keys."""
    lists = [result] if isinstance(result, TaskListStatus) else result.lists
    limits = (await api.lists.limits()).limits
    now = (await api.system.time()).now
    session.show(
        {"lists": to_builtins(lists), "limits": to_builtins(limits)},
        lambda: together(*(details(LIST, status, now) for status in lists), *([table(LIMIT, limits, now)] if limits else [])),
    )
