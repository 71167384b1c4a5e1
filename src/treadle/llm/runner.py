"""`ClaudeAgentRunner`: drives one workflow in the calling thread, with handlers where they exist and a model otherwise.

It does not poll: the tasks of the run that it started are created preclaimed by it. It holds them under leases that it renews,
and settles one after another. If its process dies, the leases expire, and any process that serves prompts continues (D56).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from treadle.agents.step_log import StepLog
from treadle.kernel.queue.decide import settlement
from treadle.kernel.store.queries import Renewal, TaskFilter
from treadle.kernel.store.units import Requeue
from treadle.llm.config import config_of
from treadle.llm.service import LLMService, outcome_of_work
from treadle.llm.tools import Tools, run_tool
from treadle.model.clock import milliseconds
from treadle.model.errors import StoreError
from treadle.model.names import HANDLER
from treadle.model.outcomes import Failed, Outcome, Problem, Released
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, LogLine, Preclaimed, Task
from treadle.model.values import Json, decode
from treadle.workers.context import Context
from treadle.workers.effects import EffectKernel

if TYPE_CHECKING:
    from treadle.agents.evaluator import Evaluator
    from treadle.agents.persistence import Persistence

_LOOKED_AT = 1000
"""Maximum number of a run's tasks that are read to find those held here."""


class ClaudeAgentRunner:
    """Runs workflows synchronously in process, one step at a time."""

    def __init__(
        self,
        evaluator: Evaluator,
        persistence: Persistence,
        *,
        anthropic_client: Any = None,
        model: str | None = None,
        system_prompt: str | None = None,
        tool_registry: Tools | None = None,
        max_dispatches: int = 100,
        max_turns: int = 10,
        max_retries: int = 2,
        stream: str | None = None,
    ) -> None:
        """With `stream`, the model's text is written to the stream of that name of the run."""
        self._evaluator = evaluator
        self._persistence = persistence
        self._tools = tool_registry
        self._max_dispatches = max_dispatches
        engine = persistence.engine
        config = config_of(
            engine.kernel.settings,
            model=model,
            system_prompt=system_prompt,
            max_turns=max_turns,
            max_retries=max_retries,
            stream=stream,
        )
        self._service = LLMService(engine, client=anthropic_client, tools=tool_registry, config=config)
        self._owner_id = engine.kernel.ids.new_id()
        self._lease_for = milliseconds(engine.kernel.settings.lease, "lease", positive=True)
        takes = "born" in inspect.signature(evaluator.execute).parameters
        self._born: dict[str, Any] = {"born": Preclaimed(self._owner_id, self._lease_for)} if takes else {}
        """Options for evaluators that support preclaimed tasks: their owner."""

    def run(
        self,
        workflow_ast: Any,
        inputs: Mapping[str, Json] | None = None,
        program_ast: Any = None,
        *,
        task_description: str | None = None,
        budget: float | None = None,
    ) -> Any:
        """Start the workflow and drive it to its end; return the evaluator's `ExecutionResult`.

        Each step uses a handler of the registry (exact name, short name, default), else the model. Errors fail the step. After
        `max_dispatches` steps the run stays PAUSED for other workers. `budget` limits the dollars that the run may spend on
        models. Raises `RuntimeError` for a facet with neither handler nor model; its run stays, too.
        """
        run = self._persistence.run
        limit: dict[str, Any] = {} if budget is None else {"budget": budget}
        result = self._evaluator.execute(workflow_ast, inputs, program_ast, **self._born, **limit)
        held: list[Claim] = []
        keeping = run(self._start_keeping(held))
        remaining = self._max_dispatches
        try:
            while result.status == "PAUSED" and remaining > 0:
                task = run(self._take(result.workflow_id, held))
                if task is None:
                    break
                remaining -= 1
                run(self._do(task, task_description))
                result = self._evaluator.resume(result.workflow_id)
        finally:
            run(self._release(result.workflow_id, keeping))
        return result

    async def _take(self, run_id: str, held: list[Claim]) -> Task | None:
        """Return the next task of the run, held by this runner; None if none is free, or the run is paused.

        Preclaimed tasks come first. Others exist if another process advanced the run.
        """
        store = self._persistence.engine.kernel.store
        mine = await self._mine(run_id, TaskState.RUNNING)
        held[:] = [task.claim for task in mine]
        if mine:
            return min(mine, key=lambda task: (task.priority, task.due_at, task.id))
        for task_id in await store.tasks.claim_of_run(run_id, HANDLER, self._owner_id, self._lease_for, 1):
            task = await store.tasks.find(task_id)
            held[:] = [] if task is None else [task.claim]
            return task
        return None

    async def _mine(self, run_id: str, *states: str) -> list[Task]:
        """Return the tasks of the run that this runner holds."""
        which = TaskFilter(states=states, kind=HANDLER, run_id=run_id)
        tasks = await self._persistence.engine.kernel.store.tasks.list_matching(which, _LOOKED_AT)
        return [task for task in tasks if task.owner_id == self._owner_id]

    async def _do(self, task: Task, description: str | None) -> None:
        engine = self._persistence.engine
        lines: list[LogLine] = []
        ctx = Context(task, engine.kernel.clock.now, lines.append, effects=self._streaming())
        step_log = StepLog(ctx, engine.kernel.clock.monotonic)
        try:
            outcome = step_log.end(await self._outcome(ctx, description))
        except RuntimeError:
            await self._settle(task, Released("neither a handler nor a model"))
            raise
        if ctx.has_streams:
            engine.kernel.committer.attach(task.claim, await ctx.close_streams())
        await self._settle(task, outcome)
        engine.kernel.committer.detach(task.claim)
        engine.kernel.run_services.advancer.views.forget(task.run_id or "")
        with suppress(StoreError):  # the work is done; only its settlement failed
            await engine.kernel.store.log.append_lines(lines)

    def _streaming(self) -> EffectKernel:
        kernel = self._persistence.engine.kernel
        services = EffectKernel(kernel.store, kernel.committer, kernel.value_store, kernel.clock, kernel.settings.stream_limit)
        services.loop = asyncio.get_running_loop()
        return services

    async def _outcome(self, ctx: Context, description: str | None) -> Outcome:
        engine, task = self._persistence.engine, ctx.task
        handler = None if self._tools is None else self._tools.find(task.name)
        if handler is None and not self._service.available:
            raise RuntimeError(f"There is no handler for {task.name}, and no model client; set ANTHROPIC_API_KEY.")

        async def work() -> Any:
            payload: dict[str, Json] = decode(await engine.kernel.value_store.unpack_text(task.payload))
            if handler is not None:
                return await run_tool(handler, payload)
            program = await engine.kernel.flows.program(task.flow_id or "")
            facet = program.find_facet(task.name)
            if facet is None:
                return Failed(Problem("no_handler", f"{task.name} is not declared in this flow, and has no handler."))
            return await self._service.answer(program, facet, payload, ctx, description=description)

        return await outcome_of_work(work())

    async def _settle(self, task: Task, outcome: Outcome) -> None:
        engine = self._persistence.engine
        decided = settlement(task, outcome, NO_RETRY, 0.0, engine.kernel.settings.payload_limit)
        await engine.kernel.run_services.settler.settle(task, task.claim, decided)

    async def _start_keeping(self, held: list[Claim]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._keep(held))

    async def _keep(self, held: list[Claim]) -> None:
        """Renew the leases of held tasks until canceled, in a separate thread."""
        engine = self._persistence.engine
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="treadle-lease") as thread:
            line = engine.kernel.store.servers.lease_connection()
            try:
                while True:
                    await engine.kernel.clock.sleep(self._lease_for / 3000)
                    with suppress(StoreError):  # retried at the next renewal; otherwise other workers take over
                        await loop.run_in_executor(thread, line.renew, [Renewal(claim) for claim in held], self._lease_for)
            finally:
                await asyncio.shield(loop.run_in_executor(thread, line.close))

    async def _release(self, run_id: str, keeping: asyncio.Task[None]) -> None:
        """Release the tasks that were not started, so that other workers can continue immediately."""
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        self._persistence.engine.kernel.run_services.advancer.driven.pop(run_id, None)
        while mine := await self._mine(run_id, TaskState.RUNNING, TaskState.PAUSED):
            for task in mine:
                released = Requeue("release", task.state, task.attempt, task.failures, task.takeovers, error=task.error)
                await self._persistence.engine.kernel.run_services.settler.settle(task, task.claim, released)
