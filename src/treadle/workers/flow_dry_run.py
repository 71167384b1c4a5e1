"""A dry run of a workflow with given answers in place of handlers: simulated in memory, without a run in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from treadle.api.flows import DryRunCall, FlowDryRun
from treadle.evaluator import Errored, Finished, Limits, RequestedTask, Started
from treadle.evaluator.simulated import SimulatedRun
from treadle.kernel.runs.flows import check_inputs, check_result, declared_returns
from treadle.lang.declare import APPROVAL, built_in_facets
from treadle.lang.nodes import Facet
from treadle.lang.program import Program
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import short_name
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.model.values import Json, decode, encode
from treadle.workers.scripts import ScriptError, ScriptRunner

_CALL_LIMIT = 1_000
_ROW_LIMIT = 10_000
_TIMEOUT = 30.0
ERROR, CODE = "@error", "@code"


async def dry_run_flow(
    program: Program, workflow: Facet, inputs: dict[str, Json], answers: Mapping[str, Json], *, lenient: bool = False
) -> FlowDryRun:
    """Run the workflow until it ends or needs an answer that was not given; scripts run in their sandbox.

    Up to 1,000 calls and 30 seconds. Failed calls are not retried. Raises `InvalidInput` for answers that do not match the
    declarations of their facets.
    """
    check_inputs(program, workflow, inputs, lenient=lenient)
    dry_run_answers = _Answers(program, answers)
    run = SimulatedRun(program, workflow.qualified_name, limits=Limits(total_rows=_ROW_LIMIT))
    try:
        async with asyncio.timeout(_TIMEOUT), ScriptRunner(concurrency=1) as scripts:
            return await _DryRun(program, run, dry_run_answers, scripts).run(inputs)
    except TimeoutError:
        raise Refused(f"The dry run took more than {_TIMEOUT:g} seconds; give smaller inputs.") from None


class _Answers:
    """The answers, checked against the declarations of their facets."""

    def __init__(self, program: Program, answers: Mapping[str, Json]) -> None:
        facets = {**built_in_facets(), **{event_facet.qualified_name: event_facet for event_facet in program.event_facets}}
        with_body = _called_with_body(program)
        self._given: dict[str, Json] = {}
        self._used: dict[str, int] = {}
        for name, answer in answers.items():
            facet = _find(facets, name)
            self._given[facet.qualified_name] = answer
            listed = answer if isinstance(answer, list) else [answer]
            for index, result in enumerate(listed):
                place = f"answers.{name}[{index}]" if isinstance(answer, list) else f"answers.{name}"
                if not isinstance(result, dict):
                    raise InvalidInput(
                        f'{place} must be a result (an object), a list of results or {{"{ERROR}": "message"}}, '
                        f"not {encode(result)[:50]}."
                    )
                if ERROR in result:
                    _problem(result, place)
                else:
                    partial = facet.qualified_name in with_body or facet is built_in_facets()[APPROVAL]
                    check_result(program, facet, result, place=place, known=[param.name for param in facet.params], partial=partial)

    def take(self, task: RequestedTask, payload: Callable[[RequestedTask], dict[str, Any]]) -> Finished | Errored | None:
        """The event of the next answer for the facet; None if there is none (left)."""
        answer = self._given.get(task.facet)
        if isinstance(answer, list):
            index = self._used.get(task.facet, 0)
            answer = answer[index] if index < len(answer) else None
        if not isinstance(answer, dict):
            return None
        self._used[task.facet] = self._used.get(task.facet, 0) + 1
        if ERROR in answer:
            return Errored(task.step_id, _problem(answer, task.facet), task.id)
        result = _approved(payload(task)) | answer if task.built_in else answer
        return Finished(task.step_id, decode(encode(result)), task.id)

    def unused(self) -> list[str]:
        """The facets whose answers were not all used."""
        return [
            name
            for name, answer in self._given.items()
            if self._used.get(name, 0) < (len(answer) if isinstance(answer, list) else 1)
        ]


class _DryRun:
    def __init__(self, program: Program, run: SimulatedRun, answers: _Answers, scripts: ScriptRunner) -> None:
        self._program, self._run, self._answers, self._scripts = program, run, answers, scripts
        self._calls: list[DryRunCall] = []
        self._performed = 0

    async def run(self, inputs: dict[str, Json]) -> FlowDryRun:
        run = self._run
        run.apply(Started(decode(encode(inputs, "inputs"))))
        run.settle()
        while run.status is RunState.RUNNING:
            await asyncio.sleep(0)
            event = await self._next()
            if event is None:
                break
            run.apply(event)
            run.settle()
        waiting = [self._call(task) for task in run.tasks.values()] if run.status is RunState.RUNNING else []
        return FlowDryRun(
            state="waiting" if waiting else str(run.status.value),
            outputs=run.outputs if run.status is RunState.COMPLETED else None,
            error=None if run.error is None or run.status is not RunState.FAILED else run.error.text,
            calls=self._calls,
            waiting=waiting,
            unused=self._answers.unused(),
        )

    async def _next(self) -> Finished | Errored | None:
        """The event of the first task that can be performed; None if all need answers that were not given."""
        for task in self._run.tasks.values():
            event = await self._script(task) if task.script is not None else self._answers.take(task, self._run.payload)
            if event is None:
                continue
            self._performed += 1
            if self._performed > _CALL_LIMIT:
                raise Refused(f"A dry run makes up to {_CALL_LIMIT:,} calls; give smaller inputs.")
            if task.script is None:
                self._calls.append(self._call(task, event))
            return event
        return None

    async def _script(self, task: RequestedTask) -> Finished | Errored:
        script, payload = task.script, self._run.payload(task)
        assert script is not None
        try:
            result = await self._scripts.run(script.code, payload, first_line=script.line, source=script.source or "<script>")
        except ScriptError as error:
            return Errored(task.step_id, Problem(error.code, str(error), error.type), task.id)
        return Finished(task.step_id, result, task.id)

    def _call(self, task: RequestedTask, event: Finished | Errored | None = None) -> DryRunCall:
        facet = self._program.find_facet(task.facet) or built_in_facets().get(task.facet)
        return DryRunCall(
            path=self._run.step(task.step_id).path,
            facet=task.facet,
            params=self._run.payload(task),
            result=event.result if isinstance(event, Finished) else None,
            error=event.problem.message if isinstance(event, Errored) else None,
            expects={} if facet is None else declared_returns(facet),
        )


def _find(facets: Mapping[str, Facet], name: str) -> Facet:
    same = [facet for full, facet in facets.items() if name in (full, short_name(full))]
    same = [facet for facet in same if facet.qualified_name == name] or same
    if len(same) == 1:
        return same[0]
    names = ", ".join(sorted(facets))
    if same:
        raise InvalidInput(f"answers.{name}: there are several facets of this name; give the qualified name: {names}.")
    near = get_close_matches(name, [*facets, *map(short_name, facets)], 1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise InvalidInput(f"answers.{name}: the flow has no event facet {name!r}{hint} It has {names}.")


def _problem(answer: Mapping[str, Json], place: str) -> Problem:
    message, code = answer[ERROR], answer.get(CODE, "failed")
    if not isinstance(message, str) or not isinstance(code, str) or not {*answer} <= {ERROR, CODE}:
        raise InvalidInput(f'{place} must have only "{ERROR}" (a message) and optionally "{CODE}" (a code), both texts.')
    return Problem(code, message)


def _approved(payload: dict[str, Any]) -> dict[str, Json]:
    """The result of an approval that a person granted."""
    grant = {
        "by": "dry run",
        "at": 0,
        "reason": None,
        "edited": False,
        "votes": [],
        "decision": "approved",
        "approval_id": "dry-run",
    }
    return {**grant, "context": payload.get("context")}


def _called_with_body(program: Program) -> set[str]:
    """The facets that some step calls with a body of its own, whose yields complete the result."""
    blocks = (block for facet in program.facets.values() for block in facet.all_blocks())
    return {step.call.name for block in blocks for step in block.steps if step.body is not None}
