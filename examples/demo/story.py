"""The story of `treadle demo`: parallel tasks that fail, are retried and lose their worker, and all complete.

A workflow runs beside them: it fans out, fails at its last step, and is retried from there. So does a durable function: it
sleeps, asks a person, and continues.

Uses real worker processes, on SQLite in a temporary folder (or on the store of `--store`, in its own namespace). Every claim of
the story is checked against the store; if one does not hold, the exit code is not 0.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.api.tasks import TaskSpec
from treadle.engine import Engine, use_store
from treadle.interfaces.cli.format import grid, plain, state, together
from treadle.interfaces.cli.host import Serving, signal_all, start_worker
from treadle.interfaces.cli.session import CommandSession
from treadle.model.errors import InvalidInput, TreadleError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.tasks import Task

WORKERS = 3
LEASE = 2.0
REST = 1.5
"""Seconds that the cloth rests before the function asks its question."""
ACTOR = "demo"
_HERE = Path(__file__).parent
_TIMEOUT = 45.0
_POLL_INTERVAL = 0.15
_KILL_AT = 0.25
"""Progress of the carpet at which its worker is killed."""
_METRES, _BOLTS = 90, 4
_CARPET, _DYE = "the carpet", "the dye"
_CLOTHS = {f"cloth {number}": 1.5 + 0.4 * (number % 5) for number in range(1, 11)}


async def tell(session: CommandSession) -> None:
    """Tell the story on the store of the session, or on a temporary one."""
    if session.chosen.typed_server:
        raise InvalidInput("The demo starts and kills workers on its own store: omit --server.", code="not_over_http")
    folder = Path(tempfile.mkdtemp(prefix="treadle-demo-"))
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await Story(session, folder).tell()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Story:
    """The story so far, as the store shows it."""

    def __init__(self, session: CommandSession, folder: Path) -> None:
        self._session, self._folder = session, folder
        self._url = session.chosen.typed_store or f"sqlite:///{folder / 'demo.db'}"
        self._engine = Engine(self._url, settings=session.settings)
        suffix = self._engine.kernel.ids.new_id()[-12:]
        self._namespace = f"demo-{suffix}" if session.chosen.typed_store else session.settings.namespace
        use_store(self._engine, self._url, replace(session.settings, namespace=self._namespace))
        self._api = session.on(self._engine)
        self._began = self._engine.kernel.clock.monotonic()
        self._lamp, self._killed = folder / "lamp", folder / "killed"
        """Files: the workflow's last step needs the lamp; the carpet's last row waits until its worker is killed."""
        self._processes: dict[int, Process] = {}
        self._pids: dict[str, int] = {}
        """Pids of the workers by their owner id."""
        self._labels: dict[str, str] = {}
        self._tasks: list[Task] = []
        self._seen: dict[str, tuple[object, ...]] = {}
        self._killed_owner = ""
        self._most_running = self._most_owners = 0
        self._order_id = self._delivery_id = self._order_error = self._approval_id = ""
        self._slept = self._delivered = False

    async def tell(self) -> None:
        """Run the story to its end, and check its claims."""
        async with self._engine:
            self._say(f"{WORKERS} worker processes start on {self._engine.kernel.store.url}, with leases of {LEASE:g} s.")
            async with self._workers():
                await self._start()
                async with asyncio.timeout(_TIMEOUT):
                    while not await self._advance():  # noqa: ASYNC110 - other processes change the store
                        await asyncio.sleep(_POLL_INTERVAL)
                self._say("Everything has ended; the workers stop.")
            await self._report()

    def _say(self, text: str) -> None:
        if not self._session.json:
            self._session.console.print(plain(f"{self._elapsed():5.1f} s  {text}"), soft_wrap=True)

    def _elapsed(self) -> float:
        return self._engine.kernel.clock.monotonic() - self._began

    @asynccontextmanager
    async def _workers(self) -> AsyncIterator[None]:
        """Start the worker processes and stop them afterwards; none is left behind."""
        options = Serving(("default",), concurrency=4, threads=4, isolated=1, grace=5, lease=LEASE)
        environment = {"TREADLE_STORE": self._url, "TREADLE_NAMESPACE": self._namespace, "TREADLE_CRASH_AT": ""}
        try:
            with self._log.open("ab") as log:
                for _ in range(WORKERS):
                    process = await start_worker(
                        self._session, [str(_HERE / "loom.py")], options, stderr=log, environment=environment
                    )
                    self._processes[process.pid] = process
            async with asyncio.timeout(_TIMEOUT):
                while len(self._pids) < WORKERS:
                    self._check_processes()
                    await asyncio.sleep(_POLL_INTERVAL)
                    servers = (await self._api.servers.list()).servers
                    running = [server for server in servers if server.state == "running"]
                    self._pids = {server.id: server.pid for server in running if server.pid in self._processes}
            yield
            signal_all(self._processes.values(), signal.SIGTERM)
            async with asyncio.timeout(_TIMEOUT):
                await asyncio.gather(*(process.wait() for process in self._processes.values()))
        except TimeoutError:
            raise TreadleError(
                f"The workers did not start, work or stop within {_TIMEOUT:g} s. {self._log_tail()}", code="demo_failed"
            ) from None
        finally:
            signal_all(self._processes.values(), signal.SIGKILL)
            await asyncio.gather(*(process.wait() for process in self._processes.values()))

    @property
    def _log(self) -> Path:
        return self._folder / "workers.log"

    def _log_tail(self) -> str:
        return f"Their log ends: {self._log.read_text('utf-8', 'replace')[-600:]}" if self._log.exists() else ""

    def _check_processes(self) -> None:
        """Raise if a worker died unexpectedly."""
        for pid, process in self._processes.items():
            if process.returncode is not None and pid != self._pids.get(self._killed_owner):
                raise TreadleError(f"Worker {pid} ended with code {process.returncode}. {self._log_tail()}", code="demo_failed")

    async def _start(self) -> None:
        """Start the workflow and the function, and enqueue the tasks."""
        source = (_HERE / "demo.afl").read_text("utf-8")
        inputs = {"metres": _METRES, "lamp": str(self._lamp)}
        self._order_id = (await self._engine.start([("demo.afl", source)], inputs, workflow="loom.Order", priority=-1)).id
        self._delivery_id = (await self._engine.start("loom.Deliver", {"to": "the castle", "rest": REST})).id
        carpet = {"rows": 50, "seconds": 5.0, "until": str(self._killed)}
        specs = [TaskSpec(name="loom.carpet", payload=carpet, priority=-1)]
        specs.append(TaskSpec(name="loom.dye", payload={"colour": "indigo"}))
        specs += [TaskSpec(name="loom.weave", payload={"rows": 20, "seconds": seconds}) for seconds in _CLOTHS.values()]
        tasks = await self._engine.enqueue_many(specs)  # last, to watch them from the beginning
        self._labels = dict(zip((task.id for task in tasks), (_CARPET, _DYE, *_CLOTHS), strict=True))
        self._say(
            f"{len(tasks)} tasks are in the store: {len(_CLOTHS)} cloths to weave, one dye that will fail once, one long carpet."
        )
        self._say(f"A workflow is started too: {_METRES} m in {_BOLTS} bolts, woven side by side, then inspected. The lamp is off.")

    async def _advance(self) -> bool:
        """Look at the store, report the changes, and act as operator; return whether everything has ended."""
        tasks = (await self._api.tasks.list(limit=200)).tasks
        self._tasks = sorted((task for task in tasks if task.id in self._labels), key=lambda task: task.id)
        running = [task for task in self._tasks if task.owner_id is not None and task.finished_at is None]
        self._most_running = max(self._most_running, len(running))
        self._most_owners = max(self._most_owners, len({task.owner_id for task in running}))
        for task in self._tasks:
            self._narrate(task)
        self._kill_worker_of_carpet()
        self._check_processes()
        order_ended, delivery_ended = await self._follow_order(), await self._follow_delivery()
        return order_ended and delivery_ended and all(task.finished_at is not None for task in self._tasks)

    def _narrate(self, task: Task) -> None:
        """Report a change of a task since the last look."""
        now = (task.state, task.attempt, task.owner_id)
        before, self._seen[task.id] = self._seen.get(task.id), now
        if before == now:
            return
        label, pid = self._labels[task.id], self._pids.get(task.owner_id or "", "?")
        error = (task.error or {}).get("message", "")
        if task.finished_at is not None:
            self._say(f"  {label}: {task.state} on worker {pid}, attempt {task.attempt}")
        elif task.owner_id is not None:
            again = ", taken over" if task.takeovers else f", retried after: {error}" if task.failures else ""
            self._say(f"  {label}: running on worker {pid}{again}")
        elif error:
            self._say(f"  {label}: failed ({error}), will be retried")

    def _kill_worker_of_carpet(self) -> None:
        """Kill it once the carpet is well under way and the dye has failed."""
        tasks = {self._labels[task.id]: task for task in self._tasks}
        carpet = tasks[_CARPET]
        done = (carpet.progress or {}).get("fraction", 0.0)
        if self._killed_owner or carpet.owner_id is None or not tasks[_DYE].failures or done < _KILL_AT:
            return
        self._killed_owner, pid = carpet.owner_id, self._pids[carpet.owner_id]
        self._processes[pid].send_signal(signal.SIGKILL)
        self._killed.touch()
        self._say(f"SIGKILL for worker {pid}, at {done:.0%} of the carpet. The others notice it.")

    async def _follow_order(self) -> bool:
        """When the workflow fails, turn on the lamp and retry it; return whether it has completed."""
        run = await self._api.runs.get(self._order_id)
        if run.state == "failed" and not self._order_error:
            self._order_error = run.error["message"]
            self._say(f"the order: failed ({self._order_error}). Somebody turns on the lamp and retries that step.")
            self._lamp.touch()
            await self._api.runs.retry(run.id)
        return run.state == "completed"

    async def _follow_delivery(self) -> bool:
        """Approve the question of the durable function with an edit; return whether the function has ended."""
        if self._delivered:
            return True
        run = await self._api.runs.get(self._delivery_id)
        if run.activity is not None and run.activity.kind == "sleeping" and not self._slept:
            self._slept = True
            self._say(f"the delivery: a Python function sleeps for {REST:g} s in the store, without occupying a worker.")
        for question in (await self._api.approvals.list(run_id=run.id)).approvals:
            self._approval_id = question.id
            await self._engine.approvals.decide(question.id, "approve", actor=ACTOR, reason="in daylight", edits={"at": "noon"})
            self._say(f"the delivery: asks {question.title!r}. Somebody approves it, for noon; it continues immediately.")
        self._delivered = run.finished_at is not None
        if self._delivered:
            self._say(f"the delivery: {run.state}, {run.outputs or run.error}")
        return self._delivered

    async def _report(self) -> None:
        """Print the tasks and the claims; raise if a claim does not hold."""
        transitions = {
            task.id: [transition.transition for transition in (await self._api.tasks.get(task.id)).transitions]
            for task in self._tasks
        }
        order, delivery = await self._api.runs.get(self._order_id), await self._api.runs.get(self._delivery_id)
        order_transitions = [transition.transition for transition in (await self._api.runs.transitions(order.id)).transitions]
        result = (delivery.outputs or {}).get("result")
        claims = await self._check(transitions, order_transitions, order.outputs or {}, result)
        value = {
            "ok": all(holds for _, holds in claims),
            "store": self._engine.kernel.store.url,
            "namespace": self._namespace,
            "took_seconds": round(self._elapsed(), 1),
            "claims": [{"claim": claim, "holds": holds} for claim, holds in claims],
            "tasks": [
                {"id": task.id, "label": self._labels[task.id], "name": task.name, "state": task.state, "attempt": task.attempt}
                for task in self._tasks
            ],
            "delivery": {"id": delivery.id, "result": result},
            "run": {"id": order.id, "workflow": "loom.Order", "transitions": order_transitions, "outputs": order.outputs},
        }
        self._session.show(value, lambda: self._summary(transitions, claims, order.outputs))
        if self._session.chosen.typed_store:
            self._say(f"All of it stays in the store: treadle --namespace {self._namespace} runs list --store ...")
        if broken := [claim for claim, holds in claims if not holds]:
            raise TreadleError(f"The story did not happen as told: {'; '.join(broken)}. {self._log_tail()}", code="demo_failed")

    async def _check(
        self, transitions: dict[str, list[str]], order_transitions: list[str], outputs: dict[str, Any], result: Any
    ) -> list[tuple[str, bool]]:
        """The claims of the story, and whether the store confirms them."""
        tasks = {self._labels[task.id]: task for task in self._tasks}
        carpet, dye = tasks[_CARPET], tasks[_DYE]
        bolts = (await self._api.tasks.list(name="loom.Bolt")).tasks
        waits = [
            transition.transition
            for task in (await self._api.tasks.list(run_id=self._delivery_id, kind="function", every=True)).tasks
            for transition in (await self._api.tasks.get(task.id)).transitions
        ].count("wait")
        codes = {pid: process.returncode for pid, process in self._processes.items()}
        killed = self._pids.get(self._killed_owner)
        report = await self._engine.kernel.verify()
        return [
            (f"all {len(self._labels)} tasks are completed", all(task.state == "completed" for task in self._tasks)),
            (
                f"up to {self._most_running} ran concurrently on {self._most_owners} workers",
                self._most_running > 1 and self._most_owners > 1,
            ),
            ("the dye failed once and was retried", transitions[dye.id].count("retry") == 1 and dye.failures == 1),
            (
                "the carpet's worker was killed and another took over",
                killed is not None and "expire" in transitions[carpet.id] and carpet.owner_id not in (None, self._killed_owner),
            ),
            (
                "the workflow failed at its last step and continued from there, with the bolts it had",
                order_transitions == ["start", "fail", "retry", "succeed"]
                and self._order_error == "Order.check: handler failed: the lamp is off"
                and len(outputs.get("bolts", ())) == len(bolts) == _BOLTS
                and all(task.state == "completed" for task in bolts),
            ),
            (
                "a durable function slept, asked a person, and continued with the answer",
                waits >= 2 and bool(self._approval_id) and result == {"to": "the castle", "at": "noon", "by": ACTOR},
            ),
            (
                "the surviving workers stopped gracefully",
                all(code == (-signal.SIGKILL if pid == killed else 0) for pid, code in codes.items()),
            ),
            (f"the log explains all {report.checked} histories", report.holds and report.checked >= len(self._labels)),
        ]

    def _summary(self, transitions: dict[str, list[str]], claims: list[tuple[str, bool]], outputs: Any) -> RenderableType:
        """The tasks with their workers, and whether each claim of the story holds."""
        table = grid("task", "state", ">worker", ">attempts", "its log")
        for task in self._tasks:
            worker = str(self._pids.get(task.owner_id or "", ""))
            history = plain(", ".join(transitions[task.id]))
            table.add_row(plain(self._labels[task.id]), state(task.state), worker, str(task.attempt), history)
        return together(
            table,
            plain(f"Outputs of the order: {json.dumps(outputs)}\n"),
            *(plain(f"{'✔' if holds else '✘'} {claim}", "green" if holds else "bold red") for claim, holds in claims),
            plain(f"\nThat took {self._elapsed():.1f} s. Next: `treadle --help`, and the README for your own handlers."),
        )
