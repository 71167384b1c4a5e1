"""A run while it runs: on a terminal a table of its steps, elsewhere a line for each change; all on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.api.tasks import WAIT_LIMIT
from treadle.cli.format import plain
from treadle.cli.session import Session
from treadle.cli.show_run import doing, is_shown, list_steps, live_tasks, steps_table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from treadle.api.facade import Api
    from treadle.api.runs import RunDetail, RunOutputs
    from treadle.api.steps import Step
    from treadle.api.tasks import Task
    from treadle.model.tasks import LogLine

_LOOK_EVERY = 0.15
_LOOK_EVERY_REMOTE = 1.0
_MOST_STEPS = 300
"""A run with more is shown in numbers."""
_MOST_ROWS = 40
_NUMBERS_EVERY = 2.0


@dataclass
class Scene:
    """The run as last looked at."""

    run: RunDetail | None = None
    steps: list[Step] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    """Live tasks by step."""


class Watcher:
    """Shows a run until it ends or `stop` is set.

    `heard` is where lines of flows are told of in this process; without it they are asked for.
    """

    def __init__(self, session: Session, api: Api, run_id: str, heard: list[Callable[[LogLine], None]] | None = None) -> None:
        self._session, self._api, self._run_id, self._heard = session, api, run_id, heard
        self._scene = Scene()
        self._told: dict[str, str] = {}
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._numbers_at = 0.0
        self._line = 0
        self._console = _console()

    async def watch(self, stop: asyncio.Event) -> RunOutputs | None:
        """What the run came to; None if it was told to stop first."""
        result = asyncio.ensure_future(self._end())
        stopping = asyncio.ensure_future(stop.wait())
        every = _LOOK_EVERY if self._heard is not None else _LOOK_EVERY_REMOTE
        if self._heard is not None:
            self._heard.append(self._hear)
        try:
            with self._live():
                while not (result.done() or stopping.done()):
                    await self._look()
                    await asyncio.wait([result, stopping], timeout=every, return_when=asyncio.FIRST_COMPLETED)
                if result.done():  # else there is no time to lose
                    await self._look()
        finally:
            if self._heard is not None:
                self._heard.remove(self._hear)
            stopping.cancel()
            result.cancel()
            await asyncio.gather(result, stopping, return_exceptions=True)
        return None if result.cancelled() else result.result()

    async def _end(self) -> RunOutputs:
        while True:
            ended = await self._api.runs.outputs(self._run_id, wait_for=WAIT_LIMIT)
            if ended.finished:
                return ended

    async def _look(self) -> None:
        if self._session.json:
            return
        before = self._scene.run
        run = await self._api.runs.get(self._run_id)
        if before is None or before.version != run.version:
            self._scene.steps = await list_steps(self._api, run.id, values=False) if run.steps <= _MOST_STEPS else []
        self._scene.tasks = await live_tasks(self._api, run.id, 100)
        self._scene.run = run
        if self._heard is None:
            await self._ask_lines()
        if not self._console.is_terminal:
            if before is None:
                self._say(f"run {run.id} of {run.workflow}")
            self._tell()

    async def _ask_lines(self) -> None:
        page = await self._api.runs.logs(self._run_id, after=self._line)
        self._line = page.next_after
        for line in page.lines:
            if line.task_id == line.step_id:  # the flow's own; those of handlers are in `runs logs`
                self._say(f"log {line.message}")

    def _tell(self) -> None:
        """A line for each step whose state has changed."""
        run = self._scene.run
        if run is not None and run.steps > _MOST_STEPS:
            if self._elapsed() - self._numbers_at >= _NUMBERS_EVERY or run.finished_at is not None:
                self._numbers_at = self._elapsed()
                self._say(f"{run.steps} steps so far, {len(self._scene.tasks)} or more tasks to do")
            return
        over = [step for step in self._scene.steps if step.state in ("completed", "failed")]
        going = [step for step in self._scene.steps if step.state not in ("completed", "failed")]
        for step in [*going, *sorted(over, key=lambda step: (step.updated_at, -step.depth))]:
            said = ", ".join(part for part in (step.state, doing(step, self._scene.tasks.get(step.id))) if part)
            if is_shown(step) and self._told.get(step.id) != said:
                self._told[step.id] = said
                self._say(f"{step.path}{f' ({step.facet})' if step.facet else ''}: {said}")

    def _hear(self, line: LogLine) -> None:
        """What the flow logs, as it comes."""
        if line.run_id == self._run_id and not self._session.json:
            self._say(f"log {line.message}")

    def _say(self, text: str) -> None:
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

        scene = self._scene
        if scene.run is None:
            return plain("")
        head = plain(f"{scene.run.workflow}  {scene.run.state}  {scene.run.id}  {self._elapsed():.1f} s", "bold")
        if scene.run.steps > _MOST_STEPS:
            return Group(head, plain(f"  {scene.run.steps} steps so far, {len(scene.tasks)} or more tasks to do"))
        rows = [step for step in scene.steps if is_shown(step)]
        hidden = 0
        if len(rows) > _MOST_ROWS:
            kept = [step for step in rows if step.state != "completed"][-_MOST_ROWS:]
            hidden, rows = len(rows) - len(kept), kept
        table = steps_table(rows, scene.tasks, with_ids=False)
        return Group(head, table, plain(f"  and {hidden} more", "dim")) if hidden else Group(head, table)


def _console() -> Console:
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=True, markup=False, highlight=False, emoji=False, width=240)
