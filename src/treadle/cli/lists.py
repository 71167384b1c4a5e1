"""`treadle lists ...`: look at task lists and hold their work back, by pausing, draining, limits, rates and caps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.session import Session
from treadle.cli.shapes import limit_json, list_json, scaling_json
from treadle.cli.words import ago, grid, plain, state
from treadle.kernel.scaling import MOST_WORKERS, TARGET_LATENCY
from treadle.model.errors import InvalidInput
from treadle.model.lists import check_count, check_rate
from treadle.model.names import DEFAULT_LIST
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.lists import ShownLane, ShownList
    from treadle.model.lists import Limit

ListName = Annotated[str, typer.Argument(metavar="LIST", help="The task list's name")]

_REMOVABLE = ("max", "rate", "backlog")


async def show(
    session: Session, task_list: Annotated[str | None, typer.Argument(metavar="[LIST]", help="Only this one")] = None
) -> None:
    """Show task lists: what is in their lanes, and what holds work back."""
    async with session.engine() as engine:
        await _show(session, engine, task_list)


async def pause(session: Session, task_list: ListName) -> None:
    """Take nothing more from a list; what runs goes on."""
    async with session.engine() as engine:
        await engine.lists.pause(task_list, actor=session.actor)
        await _show(session, engine, task_list)


async def resume(session: Session, task_list: ListName) -> None:
    """Let a paused list go on, and a draining one take new work again."""
    async with session.engine() as engine:
        await engine.lists.resume(task_list, actor=session.actor)
        await _show(session, engine, task_list)


async def drain(session: Session, task_list: ListName) -> None:
    """Let a list take no new work; what is there goes on."""
    async with session.engine() as engine:
        await engine.lists.drain(task_list, actor=session.actor)
        await _show(session, engine, task_list)


async def policy(
    session: Session,
    task_list: ListName,
    no_handler: Annotated[str, typer.Argument(metavar="wait|ignore", help="Wait for a worker, or end the task as ignored")],
) -> None:
    """Say what becomes of tasks that no live server has a handler for."""
    async with session.engine() as engine:
        await engine.lists.set_policy(task_list, no_handler, actor=session.actor)
        await _show(session, engine, task_list)


async def limit(
    session: Session,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Tasks with this limit key, e.g. customer:42")] = None,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Tasks of this handler")] = None,
    task_list: Annotated[str, typer.Option("--list", metavar="LIST", help="For rate and backlog: in this list")] = DEFAULT_LIST,
    most: Annotated[int | None, typer.Option("--max", metavar="N", help="At most so many run at once, everywhere")] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Take at most so many a second")] = None,
    burst: Annotated[
        int | None, typer.Option(metavar="N", help="So many at once after a quiet time; default: one second's")
    ] = None,
    backlog: Annotated[int | None, typer.Option(metavar="N", help="Refuse new tasks over so many ready ones")] = None,
    none: Annotated[list[str] | None, typer.Option(metavar="max|rate|backlog", help="Take it away; may be repeated")] = None,
) -> None:
    """Limit how many tasks of a handler or a key run at once, how fast they start, how many may wait."""
    away = frozenset(none or ())
    _check(key, handler, away, {"max": most, "rate": rate if rate is not None else burst, "backlog": backlog})
    check_rate(rate, burst)
    for count, what in ((most, "--max"), (backlog, "--backlog")):
        if count is not None:
            check_count(count, what)
    async with session.engine() as engine:
        await engine.lists.get(task_list)
        if key is not None:
            await engine.lists.limit_key(key, most, actor=session.actor)
        elif handler is not None and (most is not None or "max" in away):
            await engine.lists.limit_handler(handler, most, actor=session.actor)
        if handler is not None and (rate is not None or burst is not None or "rate" in away):
            await engine.lists.limit_rate(task_list, handler, rate, burst, actor=session.actor)
        if handler is not None and (backlog is not None or "backlog" in away):
            await engine.lists.limit_backlog(task_list, handler, backlog, actor=session.actor)
        await _show(session, engine, None)


async def desired(
    session: Session,
    task_list: Annotated[str, typer.Argument(metavar="[LIST]", help="The task list's name")] = DEFAULT_LIST,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Only tasks of this handler")] = None,
    target: Annotated[float, typer.Option(metavar="S", help="Seconds within which a ready task should start")] = TARGET_LATENCY,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Tasks that one worker runs at once; default: as those that are there")
    ] = None,
    least: Annotated[int, typer.Option("--min", metavar="N", help="Never fewer")] = 0,
    most: Annotated[int, typer.Option("--max", metavar="N", help="Never more")] = MOST_WORKERS,
) -> None:
    """Say how many workers a list could use, from its depth, its age and how long its tasks take."""
    async with session.engine() as engine:
        await engine.lists.get(task_list)
        found = await engine.desired_workers(
            task_list, name=handler, target_latency=target, concurrency=concurrency, minimum=least, maximum=most
        )
    session.show({"task_list": task_list, "name": handler} | scaling_json(found), lambda: plain(f"{found.desired}: {found.text}"))


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


async def _show(session: Session, engine: Engine, task_list: str | None) -> None:
    found = await engine.lists.show(task_list)
    limits = await engine.lists.limits()
    now = await engine.store.now()
    value = {"lists": [list_json(shown) for shown in found], "limits": [limit_json(each) for each in limits]}
    session.show(value, lambda: _table(found, limits, now))


def _table(found: list[ShownList], limits: list[Limit], now: int) -> RenderableType:
    from rich.console import Group

    table = grid("list", "state", "name", ">ready", ">running", ">waiting", ">held", "oldest", "rules")
    for shown in found:
        first = (plain(shown.said.task_list), state(_word(shown)))
        for lane in shown.lanes:
            depth = lane.depth
            counts = [str(count) for count in (depth.ready, depth.running, depth.waiting, depth.held)] if depth else ["0"] * 4
            oldest = ago(depth.oldest_due_at if depth else None, now)
            table.add_row(*first, plain(lane.rule.lane.name), *counts, oldest, plain(_rules(lane)))
        if not shown.lanes:
            table.add_row(*first, *[""] * 7)
    if not limits:
        return table
    keys = grid("limit key", ">max", ">admitted", ">waiting", "set by")
    for each in limits:
        row = (str(each.max_running), str(each.admitted), str(each.waiting), "operator" if each.by_operator else "enqueue")
        keys.add_row(plain(each.key), *row)
    return Group(table, keys)


def _word(shown: ShownList) -> str:
    words = ["paused" if shown.said.paused else "", "" if shown.said.accepting else "draining"]
    words.append("ignores unknown names" if shown.said.no_handler == "ignore" else "")
    return ", ".join(word for word in words if word) or "open"


def _rules(lane: ShownLane) -> str:
    rule = lane.rule
    rate = f"{rule.rate:g} a second, {rule.burst} at once" if rule.rate is not None else ""
    backlog = f"at most {rule.backlog_limit} ready" if rule.backlog_limit is not None else ""
    return "; ".join(part for part in (rate, backlog, f"limit {rule.limit_key}" if rule.limit_key else "") if part)
