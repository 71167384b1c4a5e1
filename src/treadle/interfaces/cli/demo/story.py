"""`treadle demo`: parallel tasks that fail, are retried and lose their worker, and all complete.

A workflow runs beside them: it fans out, fails at its last step, and is retried from there. So does a durable function: it
sleeps, asks a person, and continues.

Uses real worker processes, on SQLite in a temporary folder (or on the store of `--store`, in its own namespace). Every claim of
the story is checked against the store; if one does not hold, the exit code is not 0.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

from treadle.engine import Engine, use_store
from treadle.interfaces.cli.demo.crew import Crew
from treadle.interfaces.cli.demo.delivery import Delivery
from treadle.interfaces.cli.demo.view import View, make_view, summary
from treadle.interfaces.cli.session import NotOverHttp, Session
from treadle.kernel.queue.service import TaskSpec
from treadle.kernel.store.verify import VerifyReport
from treadle.model.errors import TreadleError
from treadle.model.runs import Run
from treadle.model.states import FINAL_TASK_STATES, RunState, TaskState
from treadle.model.tasks import Move, Task
from treadle.model.values import Json, decode

WORKERS = 3
LEASE = 2.0
_PATIENCE = 45.0
_LOOK_EVERY = 0.15
_KILL_AT = 0.25
"""Progress of the carpet at which its worker is killed."""

_METRES = 90
_BOLTS = 4
_CLOTHS = [(f"cloth {number}", 1.5 + 0.4 * (number % 5)) for number in range(1, 11)]


class DemoFailed(TreadleError):
    """A claim of the story does not hold."""

    code = "demo_failed"


@dataclass
class Story:
    """The story so far, as the store shows it."""

    engine: Engine
    crew: Crew
    view: View
    labels: dict[str, str] = field(default_factory=dict)
    dye_id: str = ""
    carpet_id: str = ""
    killed_pid: int = 0
    killed_owner: str = ""
    most_running: int = 0
    most_owners: int = 0
    tasks: list[Task] = field(default_factory=list)
    lamp: Path = Path()
    """The file that the workflow's last step needs."""
    killed: Path = Path()
    """The file that the carpet's last row needs: on a slow machine it must not be finished before its worker is killed."""
    run_id: str = ""
    run: Run | None = None
    bolts: int = 0
    failed_with: str = ""
    delivery: Delivery | None = None

    @property
    def order(self) -> str:
        """The workflow in a few words."""
        return "" if self.run is None else f"the order: {self.run.state}, {self.bolts} of {_BOLTS} bolts woven"


async def demo(session: Session) -> None:
    """Show the engine at work: parallel tasks, a retry, a killed worker, a repaired workflow, a sleeping function. Ten seconds.

    Runs on SQLite in a temporary folder, regardless of TREADLE_STORE; with --store, there in its own namespace.
    """
    if session.chosen.typed_server:
        raise NotOverHttp("The demo starts and kills workers on its own store: omit --server.")
    folder = Path(tempfile.mkdtemp(prefix="treadle-demo-"))
    url = session.chosen.typed_store or f"sqlite:///{folder / 'demo.db'}"
    me = asyncio.current_task()
    if me is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    try:
        await _tell(session, url, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _tell(session: Session, url: str, folder: Path) -> None:
    engine = Engine(url, settings=session.settings)
    namespace = f"demo-{engine.kernel.ids.new_id()[-12:]}" if session.chosen.typed_store else session.settings.namespace
    use_store(engine, url, replace(session.settings, namespace=namespace))
    view = make_view(session, engine.kernel.clock)
    async with engine:
        async with Crew(engine, url, namespace, folder, LEASE) as crew:
            story = Story(engine, crew, view, lamp=folder / "lamp", killed=folder / "killed", delivery=Delivery(engine))
            view.say(f"{WORKERS} worker processes start on {engine.kernel.store.url}, with leases of {LEASE:g} s.")
            await crew.start(WORKERS)
            await _enqueue(story)
            with view.live(lambda: (story.labels, story.tasks, crew.owners, story.order)):
                await _watch(story)
            view.say("Everything has ended; the workers stop.")
            await crew.stop()
        report = await engine.kernel.verify()
        moves = {task.id: await engine.kernel.reads.list_moves(task.id) for task in story.tasks}
        order = await _order(story)
        checks = _check(story, report, moves, order)
        value = {
            "ok": all(holds for _, holds in checks),
            "store": engine.kernel.store.url,
            "namespace": namespace,
            "took_seconds": round(view.elapsed(), 1),
            "claims": [{"claim": claim, "holds": holds} for claim, holds in checks],
            "tasks": [
                {"id": task.id, "label": story.labels[task.id], "name": task.name, "state": task.state, "attempt": task.attempt}
                for task in story.tasks
            ],
            "delivery": None if story.delivery is None else {"id": story.delivery.run_id, "result": story.delivery.result},
            "run": {"id": story.run_id, "workflow": "loom.Order", "moves": order.moves, "outputs": order.outputs},
        }
        session.show(value, lambda: summary(story.labels, story.tasks, moves, crew.owners, checks, view.elapsed(), order.outputs))
        if session.chosen.typed_store:
            view.say(f"All of it stays in the store: treadle --namespace {namespace} runs list --store ...")
    if broken := [claim for claim, holds in checks if not holds]:
        raise DemoFailed(f"The story did not happen as told: {'; '.join(broken)}. {crew.tail()}")


async def _enqueue(story: Story) -> None:
    source = files("treadle.interfaces.cli.demo").joinpath("demo.afl").read_text("utf-8")
    inputs = {"metres": _METRES, "lamp": str(story.lamp)}
    started = await story.engine.start_run([("demo.afl", source)], "loom.Order", inputs, priority=-1)
    story.run_id = started.id
    if story.delivery is not None:
        await story.delivery.start()
    carpet = {"rows": 50, "seconds": 5.0, "until": str(story.killed)}
    specs = [TaskSpec(name="loom.carpet", payload=carpet, priority=-1)]
    specs.append(TaskSpec(name="loom.dye", payload={"colour": "indigo"}))
    specs += [TaskSpec(name="loom.weave", payload={"rows": 20, "seconds": seconds}) for _, seconds in _CLOTHS]
    ids = [task.id for task in await story.engine.enqueue_many(specs)]  # last, to watch them from the beginning
    story.carpet_id, story.dye_id = ids[:2]
    story.labels = dict(zip(ids, ["the carpet", "the dye", *(label for label, _ in _CLOTHS)], strict=True))
    story.view.say(
        f"{len(ids)} tasks are in the store: {len(_CLOTHS)} cloths to weave, one dye that will fail once, one long carpet."
    )
    story.view.say(
        f"A workflow is started too: {_METRES} m in {_BOLTS} bolts, woven side by side, then inspected. The lamp is off."
    )


async def _watch(story: Story) -> None:
    """Poll until everything has ended; kill the carpet's worker on the way."""
    seen: dict[str, str] = {}
    async with asyncio.timeout(_PATIENCE):
        while True:
            listed = await story.engine.list_tasks(limit=200)
            story.tasks = sorted((task for task in listed if task.id in story.labels), key=lambda task: task.id)
            running = [task for task in story.tasks if task.owner_id is not None and not task.finished]
            story.most_running = max(story.most_running, len(running))
            story.most_owners = max(story.most_owners, len({task.owner_id for task in running}))
            _narrate(story, seen)
            if not story.killed_pid:
                _kill_the_carpets_worker(story)
            await _follow_the_order(story)
            delivery = story.delivery
            if delivery is not None and (news := await delivery.follow()):
                story.view.say(news)
            ended = story.run is not None and story.run.state == RunState.COMPLETED and (delivery is None or delivery.ended)
            if ended and all(task.state in FINAL_TASK_STATES for task in story.tasks) and story.tasks:
                return
            story.crew.check(story.killed_pid)
            await asyncio.sleep(_LOOK_EVERY)


async def _follow_the_order(story: Story) -> None:
    """Check the workflow's progress; when it fails, act as an operator: turn on the lamp and retry."""
    run = await story.engine.kernel.run_reads.get_run(story.run_id)
    before, story.run = story.run, run
    done = await story.engine.list_tasks(name="loom.Bolt", states=("completed",))
    story.bolts = len(done)
    if before is not None and before.state != run.state and run.state == RunState.COMPLETED:
        story.view.say("the order: completed; the bolts woven before were not woven again")
    if run.state == RunState.FAILED and not story.failed_with:
        story.failed_with = (decode(run.error) or {}).get("message", "")
        story.view.say(f"the order: failed ({story.failed_with}). Somebody turns on the lamp and retries that step.")
        story.lamp.touch()
        story.run = await story.engine.runs.retry(run.id, actor="demo")


@dataclass(frozen=True)
class Order:
    """The end of the workflow."""

    moves: list[str]
    outputs: dict[str, Json]
    bolts: list[Task]


async def _order(story: Story) -> Order:
    engine = story.engine
    run = await engine.kernel.run_reads.get_run(story.run_id)
    outputs = await engine.runs.outputs(run) if run.state == RunState.COMPLETED else {}
    moves = [move.move for move in await engine.kernel.store.log.list_moves(run.id)]
    return Order(moves, outputs, await engine.list_tasks(name="loom.Bolt"))


def _kill_the_carpets_worker(story: Story) -> None:
    """Kill it once the carpet is well under way and the dye has failed."""
    tasks = {task.id: task for task in story.tasks}
    carpet, dye = tasks.get(story.carpet_id), tasks.get(story.dye_id)
    if carpet is None or carpet.owner_id is None or carpet.finished or dye is None or not dye.failures:
        return
    done = (decode(carpet.progress) or {}).get("fraction", 0.0)
    if done >= _KILL_AT:
        story.killed_owner = carpet.owner_id
        story.killed_pid = story.crew.kill(carpet.owner_id)
        story.killed.touch()
        story.view.say(f"SIGKILL for worker {story.killed_pid}, at {done:.0%} of the carpet. The others notice it.")


def _narrate(story: Story, seen: dict[str, str]) -> None:
    """One line for each change of a task since the last poll."""
    for task in story.tasks:
        label, pid = story.labels[task.id], story.crew.owners.get(task.owner_id or "", "?")
        now = f"{task.shown_state} {task.attempt} {task.owner_id}"
        if seen.get(task.id) == now:
            continue
        before, seen[task.id] = seen.get(task.id), now
        error = (decode(task.error) or {}).get("message", "")
        if task.finished:
            story.view.note(f"{label}: {task.state} on worker {pid}, attempt {task.attempt}")
        elif task.owner_id is not None:
            after = f", retried after: {error}" if error else ", retried"
            again = ", taken over" if task.takeovers else after if task.failures else ""
            (story.view.say if again else story.view.note)(f"{label}: running on worker {pid}{again}")
        elif error:
            story.view.say(f"{label}: failed ({error}), will be retried")
        elif before is not None and task.takeovers:
            story.view.note(f"{label}: its lease ended, ready for other workers")


def _check(story: Story, report: VerifyReport, moves: dict[str, list[Move]], order: Order) -> list[tuple[str, bool]]:
    """The claims of the story, and whether the store confirms them."""
    named: Callable[[str], list[str]] = lambda task_id: [move.move for move in moves.get(task_id, [])]  # noqa: E731
    by_id = {task.id: task for task in story.tasks}
    carpet, dye = by_id[story.carpet_id], by_id[story.dye_id]
    others = len({task.owner_id for task in story.tasks if task.owner_id != story.killed_owner})
    return [
        (f"all {len(story.labels)} tasks are completed", all(task.state == TaskState.COMPLETED for task in story.tasks)),
        (
            f"up to {story.most_running} ran concurrently on {story.most_owners} workers",
            story.most_running > 1 and story.most_owners > 1,
        ),
        ("the dye failed once and was retried", named(story.dye_id).count("retry") == 1 and dye.failures == 1),
        (
            "the carpet's worker was killed and another took over",
            "expire" in named(story.carpet_id)
            and bool(story.killed_owner)
            and carpet.owner_id not in (None, story.killed_owner)
            and others > 0,
        ),
        (
            "the workflow failed at its last step and continued from there, with the bolts it had",
            order.moves == ["start", "fail", "retry", "succeed"]
            and story.failed_with == "Order.check: handler failed: the lamp is off"
            and len(order.outputs.get("bolts", ())) == len(order.bolts) == _BOLTS
            and all(task.state == TaskState.COMPLETED for task in order.bolts),
        ),
        (
            "a durable function slept, asked a person, and continued with the answer",
            story.delivery is not None and story.delivery.holds,
        ),
        ("the surviving workers stopped gracefully", story.crew.stopped_well(story.killed_pid)),
        (f"the log explains all {report.checked} histories", report.holds and report.checked >= len(story.labels)),
    ]
