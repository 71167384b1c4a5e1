"""`treadle top`: a live view of lists, runs, workers and rates in the terminal, on a store or on a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.format import ago, plain, state
from treadle.interfaces.cli.session import CommandSession
from treadle.model.clock import span
from treadle.model.errors import InvalidInput, MissingDependency, TreadleError

if TYPE_CHECKING:
    from rich.text import Text

    from treadle.api.facade import Api
    from treadle.api.lists import TaskListStatus
    from treadle.api.runs import Run
    from treadle.api.servers import Server
    from treadle.api.system import Status, Throughput
    from treadle.api.wire import Instant

RUNS = 50
_BLOCKS = " ▁▂▃▄▅▆▇█"


async def top(
    session: CommandSession,
    every: Annotated[float, option(metavar="SECONDS", help="Seconds between updates", min=0.2, max=60)] = 1.0,
) -> None:
    """Show lists, runs, workers and rates in a live view; q quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("treadle top needs a terminal. `treadle status --json` prints the state once.")
    try:
        from treadle.interfaces.cli.commands.top_screen import TopApp
    except ImportError:
        raise MissingDependency("`treadle top` needs Textual: pip install 'treadle[top]'.") from None
    async with session.api() as api:
        await TopApp(api, every, where=session.chosen.remote or session.settings.store).run_async()


class Look:
    """A snapshot of the engine; `trouble` is set instead if it did not respond."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.status: Status | None = None
        self.pace: Throughput | None = None
        self.lists: list[TaskListStatus] = []
        self.runs: list[Run] = []
        self.servers: list[Server] = []
        self.trouble: str | None = None

    async def again(self) -> None:
        """Take a new snapshot."""
        api = self._api
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

    @property
    def now(self) -> Instant | None:
        """The store's clock at the snapshot."""
        return None if self.status is None else self.status.now


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
        f"{status.tasks.ready} ready, {status.tasks.running} running, {status.tasks.waiting} waiting, {status.tasks.held} on hold",
        f"   {rate} completed in the last full minute   ",
        (spark([minute.completed for minute in minutes[-40:]]), "cyan"),
    )
    for count, what in (
        (status.dead_letters, "dead letters"),
        (status.approvals, "approvals"),
        (status.lost_servers, "lost servers"),
    ):
        if count:
            text.append(f"   {count} {what}", "red")
    return text


def spark(values: list[int]) -> str:
    """Numbers as a line of small bars."""
    most = max(values, default=0)
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // most)] if most else _BLOCKS[1] for value in values)


def list_rows(look: Look) -> list[tuple[object, ...]]:
    """A row for each handler of a task list that has tasks."""
    rows: list[tuple[object, ...]] = []
    for task_list in look.lists:
        for queue in task_list.queues:
            if queue.ready or queue.running or queue.waiting or queue.held:
                oldest = "" if queue.oldest_due_at is None or look.now is None else ago(queue.oldest_due_at, look.now)
                list_state = "paused" if task_list.paused else "" if task_list.accepting else "draining"
                counts = (queue.ready, queue.running, queue.waiting, queue.held)
                rows.append(
                    (
                        task_list.task_list,
                        queue.name if queue.kind == "handler" else f"({queue.kind})",
                        *counts,
                        oldest,
                        state(list_state),
                    )
                )
    return rows


def run_rows(look: Look) -> list[tuple[object, ...]]:
    """A row for each of the newest runs."""
    now = look.now
    return [
        (
            run.workflow,
            state(run.state),
            run.steps,
            "" if now is None else ago(run.created_at, now),
            "" if run.took_for is None else span(run.took_for),
            run.id,
        )
        for run in look.runs
    ]


def server_rows(look: Look) -> list[tuple[object, ...]]:
    """A row for each live server."""
    now = look.now
    return [
        (
            server.name,
            state(server.state),
            f"{server.running}/{server.concurrency}",
            server.handled,
            server.failed,
            ", ".join(server.task_lists),
            "" if now is None else ago(server.heartbeat_at, now),
        )
        for server in look.servers
    ]
