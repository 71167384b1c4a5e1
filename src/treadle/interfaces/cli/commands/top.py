"""`treadle top`: a live view of lists, runs, workers and rates in the terminal, on a store or on a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from treadle.api.runs import Run
from treadle.api.servers import Server
from treadle.api.view import Column, view_of
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import CommandSession
from treadle.model.errors import InvalidInput, MissingDependency, TreadleError

if TYPE_CHECKING:
    from rich.text import Text

    from treadle.api.facade import Api
    from treadle.api.lists import QueueStatus, TaskListStatus
    from treadle.api.system import Status, Throughput

RUNS = 50
_BLOCKS = " ▁▂▃▄▅▆▇█"


async def top(
    session: CommandSession,
    every: Annotated[float, option(metavar="SECONDS", help="Seconds between updates", min=0.2, max=60)] = 1.0,
) -> None:
    """Show lists, runs, workers and rates in a live view; ? lists the keys, q quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("treadle top needs a terminal. `treadle status --json` prints the state once.")
    try:
        from treadle.interfaces.cli.commands.top_screen import TopApp
    except ImportError:
        raise MissingDependency("`treadle top` needs Textual: pip install 'treadle[top]'.") from None
    async with session.api() as api:
        await TopApp(api, every, where=session.chosen.remote or session.settings.store).run_async()


def _columns(record: type) -> tuple[Column, ...]:
    view = view_of(record)
    assert view is not None
    return view.columns


class Look:
    """A snapshot of the engine; `trouble` is set instead if it did not respond."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.status: Status | None = None
        self.pace: Throughput | None = None
        self.lists: list[TaskListStatus] = []
        self.runs: list[Run] = []
        self.servers: list[Server] = []
        self.trouble: str | None = None

    async def again(self) -> None:
        """Take a new snapshot."""
        api = self.api
        try:
            self.status = await api.system.status()
            self.pace = await api.system.pace()
            self.lists = (await api.lists.list()).lists
            self.runs = (await api.runs.list(limit=RUNS)).runs
            self.servers = (await api.servers.list(live=True)).servers
        except TreadleError as error:
            self.trouble = f"{error.code}: {error}"
        else:
            self.trouble = None


def headline(look: Look, where: str) -> Text:
    """The health of the system, in two lines."""
    from rich.text import Text

    if look.trouble is not None:
        return plain(look.trouble, "bold red")
    status = look.status
    if status is None:
        return plain("Loading ...", "dim")
    tone = "bold green" if status.health == "ok" else "bold yellow"
    minutes = look.pace.minutes if look.pace is not None else []
    rate = sum(minute.completed for minute in minutes[-2:-1])
    text = Text.assemble(
        (status.health, tone),
        ("  " + "; ".join(status.reasons), "yellow"),
        f"  {status.store.kind} {where if '://' in where and '@' not in where else ''}\n",
        f"{status.tasks.ready} ready, {status.tasks.running} running, ",
        f"{status.tasks.waiting} waiting, {status.tasks.blocked} blocked",
        f"   {rate} completed in the last full minute   ",
        (spark([minute.completed for minute in minutes[-40:]]), "cyan"),
    )
    for count, what in (
        (status.dead_letters, "dead letters"),
        (status.approvals, "approvals"),
        (status.lost_servers, "lost workers"),
    ):
        if count:
            text.append(f"   {count} {what}", "red")
    return text


def spark(values: list[int]) -> str:
    """Numbers as a line of small bars."""
    most = max(values, default=0)
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // most)] if most else _BLOCKS[1] for value in values)


def _busy_queues(look: Look) -> list[tuple[TaskListStatus, QueueStatus]]:
    """The queues that have tasks, each with its list."""
    every = [(task_list, queue) for task_list in look.lists for queue in task_list.queues]
    return [(task_list, queue) for task_list, queue in every if queue.ready or queue.running or queue.waiting or queue.blocked]


def _list_state(row: tuple[TaskListStatus, QueueStatus]) -> str:
    if row[0].paused:
        return "paused"
    return "" if row[0].accepting else "draining"


_QUEUES = (
    Column("list", lambda row: row[0].task_list),
    Column("handler", lambda row: row[1].name if row[1].kind == "handler" else f"({row[1].kind})"),
    Column("ready", lambda row: row[1].ready),
    Column("running", lambda row: row[1].running),
    Column("waiting", lambda row: row[1].waiting),
    Column("blocked", lambda row: row[1].blocked),
    Column("oldest", lambda row: row[1].oldest_due_at, "instant"),
    Column("", _list_state, "state"),
)


async def details(look: Look, record: Any) -> str:
    """The facts about the record of a row, the reason for its state first."""
    match record:
        case Run():
            run = await look.api.runs.get(record.id)
            facts = {"run": run.workflow, "id": run.id, "state": run.state, "why": run.why.text, "steps": run.steps}
            facts |= {"error": (run.error or {}).get("message"), "failed step": run.failed_step_id}
        case Server():
            facts = {column.heading: column.value(record) for column in _columns(Server)}
        case (_, queue):
            facts = {column.heading or "state": column.value(record) for column in _QUEUES}
            facts["backlog limit"], facts["rate"] = queue.backlog_limit, queue.rate
        case _:
            facts = {}
    return "\n".join(f"{name}: {value}" for name, value in facts.items() if value not in (None, ""))


async def change(look: Look, record: Any, act: Literal["pause", "resume"]) -> str:
    """Pause or resume the list or the run of a row; return the message to show."""
    match record:
        case Run():
            run = await (look.api.runs.pause if act == "pause" else look.api.runs.resume)(record.id)
            return f"{run.workflow} is now {run.state}."
        case (task_list, _):
            lists = look.api.lists
            await (lists.pause if act == "pause" else lists.resume)(task_list.task_list)
            return f"{task_list.task_list} is {act}d."
    return "Lists and runs can be paused, workers cannot."


TABLES: dict[str, tuple[tuple[Column, ...], Callable[[Look], Sequence[object]]]] = {
    "lists": (_QUEUES, _busy_queues),
    "runs": (_columns(Run), lambda look: look.runs),
    "workers": (_columns(Server), lambda look: look.servers),
}
"""The tables by name, each with its columns and the records of a snapshot."""
