"""The blocking facade of `Engine`: a thread with its own event loop, and calls that wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from treadle.kernel.queue.service import Enqueued, TaskSpec
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.verify import VerifyReport
from treadle.model.tasks import Task
from treadle.model.values import Json
from treadle.wiring.kernel import NotOpen

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.kernel.approvals.records import ShownApproval
    from treadle.kernel.runs.flows import Source
    from treadle.kernel.runs.service import StartedRun
    from treadle.wiring.worker_host import WorkerHost

T = TypeVar("T")


class BlockingEngine:
    """`Engine` for code without an event loop; methods take the arguments of the `Engine` methods of the same name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._worker: AbstractAsyncContextManager[WorkerHost] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="treadle-engine", daemon=True)
        self._thread.start()
        try:
            self.run(self._engine.open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop_worker()
        finally:
            try:
                self.run(self._engine.close())
            finally:
                self._end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop and wait for it."""
        if self._loop is None:
            coroutine.close()
            raise NotOpen("Open the engine first: `with engine.blocking() as e: ...`.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start_worker(self, **options: Any) -> None:
        """Run the engine's handlers in the background; options as for `Engine.worker`."""
        if self._worker is None:
            worker = self._engine.worker(**options)
            self.run(_enter(worker))
            self._worker = worker

    def stop_worker(self) -> None:
        """Stop the worker gracefully; idempotent."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self.run(_leave(worker))

    def enqueue(self, name: str, payload: dict[str, Json] | None = None, **options: Any) -> Enqueued:
        return self.run(self._engine.enqueue(name, payload, **options))

    def enqueue_many(self, specs: Iterable[TaskSpec]) -> list[Enqueued]:
        return self.run(self._engine.enqueue_many(specs))

    def result(self, task: Enqueued | str, **options: Any) -> dict[str, Json]:
        return self.run(self._engine.result(task, **options))

    def cancel(self, task: Enqueued | str, **options: Any) -> None:
        self.run(self._engine.cancel(task, **options))

    def retry(self, task: Enqueued | str, **options: Any) -> None:
        self.run(self._engine.retry(task, **options))

    def pause(self, task: Enqueued | str, **options: Any) -> None:
        self.run(self._engine.pause(task, **options))

    def resume(self, task: Enqueued | str, **options: Any) -> None:
        self.run(self._engine.resume(task, **options))

    def get_task(self, task: Enqueued | str) -> Task:
        return self.run(self._engine.get_task(task))

    def list_tasks(self, **options: Any) -> list[Task]:
        return self.run(self._engine.list_tasks(**options))

    def why(self, work: Enqueued | StartedRun | str) -> Reason:
        return self.run(self._engine.why(work))

    def list_approvals(self, **options: Any) -> list[ShownApproval]:
        return self.run(self._engine.approvals.list(**options))

    def decide_approval(self, approval_id: str, decision: str, **options: Any) -> ShownApproval:
        return self.run(self._engine.approvals.decide(approval_id, decision, **options))

    def start_run(self, flow: str | Sequence[Source], *arguments: Any, **options: Any) -> StartedRun:
        return self.run(self._engine.start_run(flow, *arguments, **options))

    def run_result(self, run: StartedRun | str, **options: Any) -> Json:
        return self.run(self._engine.run_result(run, **options))

    def start_function(self, name: str, payload: dict[str, Json] | None = None, **options: Any) -> StartedRun:
        return self.run(self._engine.start_function(name, payload, **options))

    def start_plan(self, steps: Sequence[dict[str, Json]], inputs: dict[str, Json] | None = None, **options: Any) -> StartedRun:
        return self.run(self._engine.start_plan(steps, inputs, **options))

    def signal(self, run: StartedRun | str, name: str, payload: Json = None, **options: Any) -> bool:
        return self.run(self._engine.signal(run, name, payload, **options))

    def verify(self) -> VerifyReport:
        return self.run(self._engine.verify())

    def _end(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cancel_others() -> None:
    """Cancel the tasks left on the loop, so that none is destroyed while pending."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


async def _enter(worker: AbstractAsyncContextManager[WorkerHost]) -> None:
    await worker.__aenter__()


async def _leave(worker: AbstractAsyncContextManager[WorkerHost]) -> None:
    await worker.__aexit__(None, None, None)
