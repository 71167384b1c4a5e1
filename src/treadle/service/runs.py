"""Calls about runs, on an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

from treadle.api.conversation import PublishedValue, UpdateResult
from treadle.api.flows import SourceText
from treadle.api.options import RunOptions
from treadle.api.runs import (
    BulkResult,
    Run,
    RunAction,
    RunCounts,
    RunDetail,
    RunFilter,
    RunLogPage,
    RunMoves,
    RunOutputs,
    RunPage,
    RunRefusal,
    RunsApi,
    RunStarted,
    RunUsage,
    SignalSent,
    Takeover,
)
from treadle.api.tasks import WAIT_LIMIT, Task, TaskPage
from treadle.api.wire import Instant
from treadle.kernel.functions.steps import is_function
from treadle.kernel.reads.records import move_record, why_run
from treadle.kernel.runs.flows import check_inputs, find_workflow
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.search.query import Query
from treadle.kernel.search.service import created_within, one_of
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.value_store import ValueLost
from treadle.model.errors import IllegalMove, InvalidInput, RunCanceled, RunFailed, UnreadableValue
from treadle.model.runs import Doing
from treadle.model.runs import Run as StoredRun
from treadle.model.states import RUN, RunState
from treadle.model.tasks import Task as StoredTask
from treadle.model.values import Json, decode, unreadable_json
from treadle.service.flows import pairs
from treadle.service.run_group import RunGroup
from treadle.service.run_records import run_line, usage_request, usage_sums


class Runs(RunGroup, RunsApi):
    """See `RunsApi`."""

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
        **which: Unpack[RunFilter],
    ) -> RunPage:
        chosen, reads = await self._filter(which), self.engine.kernel.run_reads
        if where := chosen.pop("where"):
            more = _conditions(reads, state, chosen)
            page = await self.engine.kernel.search.list_runs(where, more=more, before_id=before, limit=limit)
            return RunPage(await self.listed(page.records), page.cursor, page.searched)
        found = await reads.list_runs(states=tuple(state), before_id=before, limit=limit, **chosen)
        return RunPage(await self.listed(found), found[-1].id if len(found) == limit else None)

    async def counts(self, **which: Unpack[RunFilter]) -> RunCounts:
        chosen, reads = await self._filter(which), self.engine.kernel.run_reads
        if where := chosen.pop("where"):
            found = await self.engine.kernel.search.find_runs(where, _conditions(reads, (), chosen))
            doing = Counter(str(each.doing) for each in (await reads.activities(found)).values())
            states = Counter(str(run.state) for run in found)
            return RunCounts(
                {state.value: states[state] for state in RunState}, len(found), {each.value: doing[each] for each in Doing}
            )
        counts = await reads.count_runs(**chosen)
        return RunCounts(counts, sum(counts.values()), await reads.count_doing(**chosen))

    async def bulk(
        self,
        action: RunAction,
        *,
        dry_run: bool = False,
        state: Sequence[str] = (),
        reason: str | None = None,
        limit: int = 100,
        before: str | None = None,
        **which: Unpack[RunFilter],
    ) -> BulkResult:
        chosen = await self._filter(which)
        where = chosen.pop("where")
        page = await self.engine.kernel.run_services.bulk.act(
            action,
            actor=self.actor,
            states=tuple(state),
            before_id=before,
            limit=limit,
            dry_run=dry_run,
            reason=reason,
            query=None if not where else (where, _conditions(self.engine.kernel.run_reads, (), chosen)),
            **chosen,
        )
        refused = [RunRefusal(run_id, error.code, str(error)) for run_id, error in page.refused]
        return BulkResult(action, dry_run, page.matched, page.done, refused, page.next_before)

    async def _filter(self, which: RunFilter) -> dict[str, Any]:
        """The filter as the kernel's reads take it."""
        chosen: dict[str, Any] = dict(which)
        flow, since, until = (chosen.pop(name, None) for name in ("flow", "since", "until"))
        return chosen | {
            "where": (which.get("where") or "").strip(),
            "flow_ids": () if flow is None else await self.engine.kernel.flows.list_ids(flow),
            "task_list": self.one_list(which.get("task_list")),
            "created_after": _ms(since, "since"),
            "created_before": _ms(until, "until"),
        }

    async def start(
        self,
        flow: str,
        workflow: str | None = None,
        inputs: dict[str, Json] | None = None,
        *,
        version: int | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        started = await self.engine.start_run(flow, workflow, inputs, version=version, actor=self.actor, **options)
        return await self.started(started)

    async def start_from_source(
        self,
        sources: Sequence[SourceText],
        workflow: str | None = None,
        inputs: dict[str, Json] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        started = await self.engine.start_run(pairs(sources), workflow, inputs, actor=self.actor, **options)
        return await self.started(started)

    async def get(self, run_id: str) -> RunDetail:
        run = await self.find_run(run_id)
        engine = self.engine
        current = await engine.kernel.run_reads.get_current(run.id)
        reason = await engine.kernel.run_reads.why(run.id)
        rows, budget = await engine.kernel.run_reads.usage(run.id)
        return await self.shown(
            RunDetail,
            run,
            inputs=await self._opened(run.inputs),
            outputs=await self._opened(run.outputs) if run.state == RunState.COMPLETED else None,
            why=why_run(run, reason),
            usage=usage_sums(rows),
            budget_micros=None if budget is None else budget.limit_micros,
            awaited_signals=await engine.kernel.run_reads.list_awaited_signals(run.id),
            takeovers=await _takeovers(engine.kernel.run_reads, run.id),
            missing_handlers=await self.missing_handlers(run),
            continued_as=None if current.id == run.id else current.id,
            chain_id=run.chain_id,
            link=run.link,
            published=await self._published(run),
        )

    async def _opened(self, stored: str | None) -> Json:
        """The values, or an error in their place if they cannot be read."""
        try:
            return await self.engine.kernel.value_store.unpack(stored)
        except (UnreadableValue, ValueLost) as error:
            return unreadable_json(error)

    async def outputs(self, run_id: str, *, wait_for: float = 0.0) -> RunOutputs:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        asked = await self.find_run(run_id)
        if wait_for:
            try:
                await self.engine.run_result(asked.id, timeout=wait_for)
            except (TimeoutError, RunFailed, RunCanceled):
                pass  # the outcome is read below
        run = await self.engine.kernel.run_reads.get_current(asked.id)
        outputs = await self._opened(run.outputs) if run.state == RunState.COMPLETED else None
        reason = await self.engine.kernel.run_reads.why(run.id)
        return RunOutputs(
            id=asked.id,
            workflow=run.workflow,
            state=str(run.state),
            finished=run.finished,
            ended_as=run.id,
            outputs=outputs,
            error=decode(run.error) if run.state in (RunState.FAILED, RunState.CANCELED) else None,
            failed_step_id=run.failed_step_id,
            why=reason.text,
        )

    async def moves(self, run_id: str) -> RunMoves:
        run = await self.find_run(run_id)
        return RunMoves(run.id, [move_record(move) for move in await self.engine.kernel.run_reads.list_moves(run.id)])

    async def logs(self, run_id: str, *, limit: int = 200, before: int | None = None, after: int | None = None) -> RunLogPage:
        if before is not None and after is not None:
            raise InvalidInput("Give either before or after, not both.")
        run = await self.find_run(run_id)
        found = await self.engine.kernel.run_reads.page_lines(run.id, limit, before, after)
        paths = await self.engine.kernel.run_reads.list_paths(run.id, [line.step_id for _, line in found])
        lines = [run_line(number, line, paths) for number, line in found]
        earlier = lines[0].number if lines and len(lines) == limit and after is None else None
        return RunLogPage(run.id, lines, earlier, lines[-1].number if lines else after or 0)

    async def tasks(self, run_id: str, *, limit: int = 100) -> TaskPage:
        check_limit(limit)
        run = await self.find_run(run_id)
        found = await self.engine.kernel.run_reads.list_live_tasks(run.id, limit)
        return TaskPage([self.engine.kernel.task_records.show(Task, task) for task in found], None)

    async def usage(self, run_id: str) -> RunUsage:
        run = await self.find_run(run_id)
        rows, budget = await self.engine.kernel.run_reads.usage(run.id)
        paths = await self.engine.kernel.run_reads.list_paths(run.id, [row.step_id for row in rows])
        return RunUsage(
            run_id=run.id,
            budget_micros=None if budget is None else budget.limit_micros,
            total=usage_sums(rows),
            requests=[usage_request(row, paths.get(row.step_id or "")) for row in rows],
        )

    async def signal(self, run_id: str, name: str, payload: Json = None, *, idempotency_key: str | None = None) -> SignalSent:
        run = await self.find_run(run_id)
        awaited = await self.engine.kernel.run_reads.list_awaited_signals(run.id)
        told = await self.engine.signal(run.id, name, payload, idempotency_key=idempotency_key, actor=self.actor)
        left = await self.engine.kernel.run_reads.list_awaited_signals(run.id)
        return SignalSent(run.id, name, told, name in awaited, left)

    async def _published(self, run: StoredRun) -> Json:
        if not is_function(run.flow_id):
            return None
        try:
            found = await self.engine.kernel.functions.list_published(run.id)
        except (UnreadableValue, ValueLost) as error:
            return unreadable_json(error)
        return {name: each.get("value") for name, each in found.items()} or None

    async def query(self, run_id: str, name: str) -> PublishedValue:
        functions, run = self.engine.kernel.functions, await self.find_run(run_id)
        value = await functions.query(run.id, name)
        at = (await functions.list_published(run.id))[name].get("at")
        current = await functions.get_current(run.id)
        return PublishedValue(current.id, name, value, Instant.of(at if type(at) is int else 0))

    async def update(
        self, run_id: str, name: str, payload: Json = None, *, wait_for: float = 10.0, idempotency_key: str | None = None
    ) -> UpdateResult:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        functions, run = self.engine.kernel.functions, await self.find_run(run_id)
        key = idempotency_key or self.engine.kernel.ids.new_id()
        sent = await functions.send_update(run.id, name, payload, idempotency_key=key, actor=self.actor)
        answer = await functions.wait_for_answer(sent, wait_for)
        return UpdateResult(run.id, name, key, answer is not None, None if answer is None else answer.value)

    async def pause(self, run_id: str) -> Run:
        return await self.shown(Run, await self.engine.runs.pause(run_id, actor=self.actor))

    async def resume(self, run_id: str) -> Run:
        run = await self.engine.kernel.run_reads.get_current((await self.find_run(run_id)).id)
        if run.finished:
            raise IllegalMove("run", run.id, run.state, "resume", RUN.possible(run.state))
        return await self.shown(Run, await self.engine.runs.resume(run.id, actor=self.actor))

    async def cancel(self, run_id: str, *, reason: str | None = None, force: bool = False) -> Run:
        return await self.shown(Run, await self.engine.runs.cancel(run_id, actor=self.actor, reason=reason, force=force))

    async def retry(self, run_id: str, *, step: str | None = None) -> Run:
        run = await self.find_run(run_id)
        run = await self.engine.kernel.run_reads.get_current(run.id)
        step_id = None if step is None else (await self.engine.kernel.run_reads.get_step(run.id, step)).id
        return await self.shown(Run, await self.engine.runs.retry(run.id, step_id, actor=self.actor))

    async def rerun(self, run_id: str, *, inputs: dict[str, Json] | None = None, lenient: bool = False) -> RunStarted:
        run = await self.find_run(run_id)
        given = {**await self.engine.runs.inputs(run), **(inputs or {})}
        if inputs and not is_function(run.flow_id):
            program = await self.engine.kernel.flows.program(run.flow_id)
            check_inputs(program, find_workflow(program, run.workflow), given, lenient=lenient)
        return await self.started(await self.engine.runs.rerun(run.id, inputs=given, actor=self.actor))

    async def fork(self, run_id: str, step: str, *, inputs: dict[str, Json] | None = None) -> RunStarted:
        run = await self.find_run(run_id)
        step_id = (await self.engine.kernel.run_reads.get_step(run.id, step)).id
        return await self.started(await self.engine.runs.fork(run.id, step_id, inputs=inputs or {}, actor=self.actor))


def _conditions(reads: RunReads, state: Sequence[str], chosen: dict[str, Any]) -> list[Query]:
    """The other filters of a search."""
    if chosen.get("search"):
        raise InvalidInput("Give either where or search, not both: where finds a name with name = import*.")
    given = reads.runs_like(states=state, **chosen)
    return [
        *one_of("state", given.states),
        *one_of("name", [given.workflow]),
        *one_of("kind", [given.kind]),
        *one_of("list", [given.task_list]),
        *one_of("root", [given.root_id]),
        *one_of("flow", given.flow_ids),
        *one_of("doing", [chosen.get("doing")]),
        *created_within(given.created_after, given.created_before),
    ]


async def _takeovers(reads: RunReads, run_id: str) -> list[Takeover]:
    found = [(move, task or StoredTask(id=move.entity_id, lane_id=0)) for move, task in await reads.list_takeovers(run_id)]
    paths = await reads.list_paths(run_id, [task.step_id for _, task in found])
    return [
        Takeover(Instant.of(move.at), task.id, task.name or None, task.step_id, paths.get(task.step_id or ""), move.actor)
        for move, task in found
    ]


def _ms(at: datetime | None, what: str) -> int | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise InvalidInput(f"{what} needs a time zone: 2027-01-15T09:00:00Z.")
    return round(at.timestamp() * 1000)
