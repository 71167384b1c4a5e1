"""A run for people: its steps as a table, and a live view on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from treadle.api.runs import RUN
from treadle.api.view import short, words
from treadle.interfaces.cli.calls import wait_for_end
from treadle.interfaces.cli.format import details, grid, plain, state, together
from treadle.interfaces.cli.session import CommandSession
from treadle.model.clock import span

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console, RenderableType
    from rich.text import Text

    from treadle.api.facade import Api
    from treadle.api.runs import RunDetail, RunOutputs
    from treadle.api.steps import Step, StepDetail
    from treadle.api.tasks import Task
    from treadle.model.tasks import LogLine

_SCRIPTS = ("state.facet.scripts.Begin", "state.block.execution.Begin")
_PAGE = 1000


async def list_steps(api: Api, run_id: str, most: int = 10_000, *, values: bool = True) -> list[Step]:
    """Up to `most` steps and blocks of a run, each below its parent, in the order of the program."""
    from treadle.api.steps import in_order

    steps: list[Step] = []
    after: str | None = None
    while len(steps) < most:
        limit = min(most - len(steps), _PAGE)
        page = await api.steps.list(run_id, order="stored", values=values, limit=limit, after=after)
        steps += page.steps
        after = page.next_after
        if after is None:
            break
    return list(in_order(steps))


async def live_tasks(api: Api, run_id: str, most: int = 500) -> dict[str, Task]:
    """Live tasks of the run, by step."""
    return {task.step_id or "": task for task in (await api.runs.tasks(run_id, limit=most)).tasks}


def is_shown(step: Step) -> bool:
    """Whether to show it: steps, and blocks that run a script or have an error of their own."""
    return step.is_step or step.task_id is not None or (step.error is not None and step.error.step_id == step.id)


def activity_of(step: Step, task: Task | None) -> str:
    """The most important fact about a step, in a few words."""
    if step.facet in ("step", "effect") and step.state == "running" and step.worker is not None:
        return f"since {words(step.began_at)}, attempt {step.attempt} on {step.worker}"
    if step.error is not None:
        return short(f"{'caught: ' if step.state == 'completed' else ''}{step.error.cause}", 80)
    if task is not None:
        progress = task.progress or {}
        what = "script" if step.language_state in _SCRIPTS else "handler"
        again = f", attempt {task.attempt}" if task.attempt > 1 else ""
        if task.owner_id is not None:
            return short(f"{what} works{again}{': ' + progress['message'] if progress.get('message') else ''}", 80)
        failed = (task.error or {}).get("message")
        return short(f"{what} waits{f', failed: {failed}' if failed else ''}", 80)
    return ""


def steps_table(steps: Sequence[Step], tasks: Mapping[str, Task], *, with_ids: bool = True) -> RenderableType:
    """Steps with their states, one per line: with ids and full paths, or as a tree for people."""
    paths: list[str] = []
    columns = ["step", "facet", "state", ">took", "note"]
    table = grid(*(["id", *columns] if with_ids else columns))
    for step in steps:
        note = plain(activity_of(step, tasks.get(step.id)), "red" if step.state == "failed" else "")
        cells = [
            named(step.path if with_ids else _branch(step, paths), step.about),
            plain(step.facet or step.kind),
            state(step.state),
            plain("" if step.took_for is None else span(step.took_for)),
            note,
        ]
        table.add_row(*([plain(step.id, "dim"), *cells] if with_ids else cells))
    return table


def named(name: str, about: str) -> Text:
    """The name of a step with its arguments: `pay(order = 7)`."""
    from rich.text import Text

    return Text.assemble(plain(name), plain(f"({short(about, 60)})" if about else "", "dim"))


def _branch(step: Step, above: list[str]) -> str:
    """The path relative to the step above, indented; `above` holds the paths from the root to the previous step."""
    while above and not step.path.startswith((f"{above[-1]}.", f"{above[-1]}[")) and (step.is_step or step.path != above[-1]):
        above.pop()
    inside = step.path[len(above[-1]) :].lstrip(".") if above else step.path
    indent = "  " * len(above)
    if step.is_step:
        above.append(step.path)
    return f"{indent}{inside or step.name}"


VALUE_LIMIT = 400
"""Characters of a value of a run that are shown."""


def _is_large(value: object) -> bool:
    return len(words(value)) > VALUE_LIMIT


def show_run(
    run: RunDetail, steps: Sequence[Step], tasks: Mapping[str, Task], now: datetime, failed: StepDetail | None = None
) -> RenderableType:
    """One run: the step at which it failed, facts, values in brief, steps."""
    large = {name: short(words(getattr(run, name)), VALUE_LIMIT) for name in ("inputs", "outputs") if _is_large(getattr(run, name))}
    run = msgspec.structs.replace(run, **large)
    failure: list[RenderableType] = []
    if failed is not None:
        message = failed.error.message if failed.error is not None else ""
        failure = [plain(f"{failed.path} failed: {message}", "bold red"), plain(f"{failed.traceback or ''}\n")]
    visible_steps = steps_table([step for step in steps if is_shown(step)], tasks, with_ids=False)
    parts: list[RenderableType] = [*failure, details(RUN, run, now), plain("\nSteps", "bold"), visible_steps]
    if run.steps > len(steps):
        more = f"`treadle runs steps {run.id} --limit {run.steps}` shows all."
        parts.append(plain(f"Showing {len(steps)} of {run.steps} steps and blocks; {more}"))
    return together(*parts)


_LOOK_EVERY = 0.15
_LOOK_EVERY_REMOTE = 1.0
_MAX_STEPS = 300
"""A run with more steps is shown as numbers."""
_MAX_ROWS = 40
_NUMBERS_EVERY = 2.0


class RunWatcher:
    """Shows a run until it ends or `stop` is set.

    `heard` delivers the flow's log lines of this process; without it they are polled.
    """

    def __init__(
        self, session: CommandSession, api: Api, run_id: str, heard: list[Callable[[LogLine], None]] | None = None
    ) -> None:
        self._session, self._api, self._run_id, self._following = session, api, run_id, heard
        self._run: RunDetail | None = None
        self._steps: list[Step] = []
        self._tasks: dict[str, Task] = {}
        """Live tasks by step."""
        self._printed: dict[str, str] = {}
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._numbers_at = 0.0
        self._line = 0
        self._console = _console()

    async def watch(self, stop: asyncio.Event) -> RunOutputs | None:
        """Return the run's outputs; None if `stop` was set first."""
        ends = wait_for_end(lambda part: self._api.runs.outputs(self._run_id, wait_for=part), None, "Run", self._run_id)
        result = asyncio.ensure_future(ends)
        stopping = asyncio.ensure_future(stop.wait())
        every = _LOOK_EVERY if self._following is not None else _LOOK_EVERY_REMOTE
        if self._following is not None:
            self._following.append(self._on_line)
        try:
            with self._live():
                while not (result.done() or stopping.done()):
                    await self._look()
                    await asyncio.wait([result, stopping], timeout=every, return_when=asyncio.FIRST_COMPLETED)
                if result.done():  # otherwise stop without delay
                    await self._look()
        finally:
            if self._following is not None:
                self._following.remove(self._on_line)
            stopping.cancel()
            result.cancel()
            await asyncio.gather(result, stopping, return_exceptions=True)
        return None if result.cancelled() else result.result()

    async def _look(self) -> None:
        if self._session.json:
            return
        before = self._run
        run = await self._api.runs.get(self._run_id)
        if before is None or before.version != run.version:
            self._steps = await list_steps(self._api, run.id, values=False) if run.steps <= _MAX_STEPS else []
        self._tasks = await live_tasks(self._api, run.id, 100)
        self._run = run
        if self._following is None:
            await self._print_lines()
        if not self._console.is_terminal:
            if before is None:
                self._print(f"run {run.id} of {run.workflow}")
            self._print_steps()

    async def _print_lines(self) -> None:
        page = await self._api.runs.logs(self._run_id, after=self._line)
        self._line = page.next_after
        for line in page.lines:
            if line.task_id == line.step_id:  # only the flow's own lines; `runs logs` has those of handlers
                self._print(f"log {line.message}")

    def _print_steps(self) -> None:
        """Print a line for each step with a changed state."""
        run = self._run
        if run is not None and run.steps > _MAX_STEPS:
            if self._elapsed() - self._numbers_at >= _NUMBERS_EVERY or run.finished_at is not None:
                self._numbers_at = self._elapsed()
                self._print(f"{run.steps} steps so far, at least {len(self._tasks)} pending tasks")
            return
        over = [step for step in self._steps if step.state in ("completed", "failed")]
        going = [step for step in self._steps if step.state not in ("completed", "failed")]
        for step in [*going, *sorted(over, key=lambda step: (step.updated_at, -step.depth))]:
            description = ", ".join(part for part in (step.state, activity_of(step, self._tasks.get(step.id))) if part)
            if is_shown(step) and self._printed.get(step.id) != description:
                self._printed[step.id] = description
                what = "value" if step.facet == "sys.value" else step.facet
                self._print(f"{step.path}{f' ({what})' if what else ''}: {description}")

    def _on_line(self, line: LogLine) -> None:
        """Print the flow's log lines as they arrive."""
        if line.run_id == self._run_id and not self._session.json:
            self._print(f"log {line.message}")

    def _print(self, text: str) -> None:
        self._console.print(plain(f"{self._elapsed():6.1f} s  {text}"), soft_wrap=True)

    def _elapsed(self) -> float:
        return self._loop.time() - self._began

    @contextmanager
    def _live(self) -> Iterator[None]:
        if self._session.json or not self._console.is_terminal:
            yield
            return
        from rich.live import Live

        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=8):
            yield

    def _picture(self) -> RenderableType:
        from rich.console import Group

        if self._run is None:
            return plain("")
        head = plain(f"{self._run.workflow}  {self._run.state}  {self._run.id}  {self._elapsed():.1f} s", "bold")
        if self._run.steps > _MAX_STEPS:
            return Group(head, plain(f"  {self._run.steps} steps so far, at least {len(self._tasks)} pending tasks"))
        rows = [step for step in self._steps if is_shown(step)]
        hidden = 0
        if len(rows) > _MAX_ROWS:
            unfinished = [step for step in rows if step.state != "completed"][-_MAX_ROWS:]
            hidden, rows = len(rows) - len(unfinished), unfinished
        table = steps_table(rows, self._tasks, with_ids=False)
        return Group(head, table, plain(f"  and {hidden} more", "dim")) if hidden else Group(head, table)


def _console() -> Console:
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=True, markup=False, highlight=False, emoji=False, width=240)
