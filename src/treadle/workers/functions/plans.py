"""The built-in function that executes declarative plans, step by step."""

from __future__ import annotations

from typing import Any

from treadle.model.errors import InvalidPlan, NonRetryable
from treadle.model.names import PLAN
from treadle.model.plans import INPUTS, read_plan, resolve
from treadle.model.values import Json
from treadle.workers.functions.context import FunctionContext
from treadle.workers.functions.registry import Function, make_function


async def run_plan(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Json]:
    """Run the steps in order, and return their results by name."""
    known: dict[str, Json] = {INPUTS: payload.get("inputs") or {}}
    for step in read_plan(payload["steps"]):
        try:
            arguments = resolve(step.arguments, known)
        except InvalidPlan as error:
            raise NonRetryable(str(error), error.code) from None
        if step.approval is not None:
            options = dict(step.approval)
            question = options.pop("question", f"May {step.name} ({step.handler}) go ahead?")
            decision = await ctx.approval(question, context=arguments, **options)
            if options.get("edits") and isinstance(decision.get("context"), dict):
                arguments = decision["context"]
        known[step.name] = await ctx.call(step.handler, arguments, name=step.name, retry=step.retry, task_list=step.task_list)
    del known[INPUTS]
    return known


def plan_function() -> Function:
    """Return the function, which every process registers."""
    return make_function(PLAN, run_plan, max_steps=25_000, cleanup_timeout=0)
