"""Steps of agents in durable functions, for the integrations of agent frameworks: names, options, budgets and approvals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar
from weakref import WeakKeyDictionary

from pydantic_core import to_jsonable_python

from treadle.llm.config import LLMError
from treadle.llm.ledger import TaskMeter, TokenCounts, meter_of_task
from treadle.model.approvals import ApprovalRequest
from treadle.model.clock import Duration
from treadle.model.errors import (
    ApprovalDenied,
    ApprovalExpired,
    InvalidApproval,
    InvalidInput,
    MisusedContext,
    NonRetryable,
    StepFailed,
)
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.workers.functions.context import FunctionContext, current, current_function
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.wait_operations import host_of

T = TypeVar("T")

_PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 410, 413, 414, 415, 422})
"""Statuses with which a service refuses a request, whatever is tried."""

_meters: WeakKeyDictionary[Driver, TaskMeter] = WeakKeyDictionary()


class StepOptions(TypedDict, total=False):
    """Options of the steps of model requests and tools."""

    retry: RetryPolicy | int | None
    """Repeats a failed attempt; default: no retries."""
    timeout: Duration | None
    """Bounds one attempt."""
    limit_key: str | None
    """Counts every attempt against the limit and the rate of that key."""


class ToolOptions(StepOptions, total=False):
    """Options of a tool."""

    effect: bool
    """Record the call before it is made, as `ctx.effect` does: after a crash, the log shows that its outcome is unknown."""
    task: str
    """Call this handler, on any worker, with the tool's arguments, in place of the tool's own code."""
    task_list: str | None
    """The list of that task."""
    approval: dict[str, Any]
    """Options of its approvals, as for `ctx.approval`: `deciders`, `expires`, ..."""


def checked_options(options: Mapping[str, Any], kind: type, of: str) -> dict[str, Any]:
    """Return the options, or raise `InvalidInput` with the first name that is unknown."""
    valid = {**StepOptions.__annotations__, **kind.__annotations__}
    for name in options:
        if name not in valid:
            raise InvalidInput(f"{of} has the unknown option {name!r}; there are {', '.join(valid)}.")
    if options.get("approval"):
        checked_approval(options["approval"])
    return dict(options)


def checked_approval(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `ctx.approval`; raises `InvalidApproval`."""
    try:
        ApprovalRequest.of(**{"title": "?", **options})
    except TypeError as error:
        raise InvalidApproval(f"The options of approvals are not valid: {error}.") from None
    return dict(options)


def function_of(given: FunctionContext | None = None) -> FunctionContext:
    """Return the given durable function, or the one that calls this code."""
    ctx = given or current_function()
    if ctx is None:
        raise MisusedContext("This must be called in the code of a durable function (`@engine.function`), outside its steps.")
    return ctx


def replay_id(ctx: FunctionContext, name: str) -> str:
    """Return an id for something that a framework begins in the function: the same in every replay."""
    return f"{ctx.run_id}/{host_of(ctx._driver).number(name)}"


def run_step(ctx: FunctionContext, name: str, code: Callable[[], Awaitable[Any]], options: Mapping[str, Any]) -> Awaitable[Any]:
    """Record the code as a step that a replay finds by name, with the options of a tool or a model request."""
    step_options = {key: value for key, value in options.items() if key in StepOptions.__annotations__}
    if options.get("effect"):
        return ctx.hosted(name, ctx.effect(name, code, **step_options))
    return ctx.hosted(name, ctx.step(code, name=name, **step_options))


async def run_model_step(ctx: FunctionContext, name: str, code: Callable[[], Awaitable[Any]], options: Mapping[str, Any]) -> Any:
    """Record a request to a model as a step; a run that is out of budget fails with that code."""
    try:
        return await run_step(ctx, name, code, options)
    except StepFailed as failed:
        if failed.error_code in ("budget_exhausted", "price_unknown", "llm_rejected"):
            raise LLMError(failed.error_code, failed.error) from failed
        raise


def call_task(ctx: FunctionContext, name: str, options: Mapping[str, Any], payload: Mapping[str, Json]) -> Awaitable[Any]:
    """Call the handler of a tool that is a task; its retries are those of the task."""
    call_options = {key: options[key] for key in ("retry", "timeout", "limit_key", "task_list") if key in options}
    return ctx.hosted(name, ctx.call(options["task"], payload, **call_options))


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """The decision about a tool call: the arguments as approved, or the reason of the denial."""

    context: Mapping[str, Any]
    denied: str | None = None


async def ask(ctx: FunctionContext, name: str, tool: str, context: Mapping[str, Json], options: Mapping[str, Any]) -> ToolDecision:
    """Ask for the approval of a tool call; the function waits without a worker. An expired approval counts as denied."""
    request = {"title": f"{tool}?", "edits": True, **options, "context": {"tool": tool, **context}}
    title = request.pop("title")
    try:
        decided = await ctx.hosted(name, ctx.approval(title, **request))
    except (ApprovalDenied, ApprovalExpired) as error:
        return ToolDecision(context, str(error))
    approved = decided.get("context")
    return ToolDecision(approved if isinstance(approved, dict) else context)


def write_to(stream: str, value: Any) -> None:
    """Append an event of a framework to a stream of the run, from a step or the code between steps."""
    ctx = current.get()
    if ctx is not None:
        ctx.stream(stream).write(to_jsonable_python(value, fallback=repr, bytes_mode="base64"))


# budgets


def meter_of(ctx: FunctionContext) -> TaskMeter:
    """Return the meter of the run: all its agents share its budget."""
    driver = ctx._driver
    if driver not in _meters:
        runtime, task = driver.execution.runtime, driver.execution.task
        _meters[driver] = meter_of_task(runtime.settings, runtime.store, runtime.ids, task)
    return _meters[driver]


def most_output(ctx: FunctionContext) -> int:
    """Return the number of output tokens of a request that sets none, if its run has a budget."""
    return ctx._driver.execution.runtime.settings.llm_max_tokens


async def metered(
    ctx: FunctionContext,
    model: str,
    request: dict[str, Any],
    send: Callable[[], Awaitable[T]],
    tokens_of: Callable[[T], TokenCounts],
    status_of: Callable[[Exception], int | None],
) -> T:
    """Send a request within the budget of the run: reserve its maximum cost, send it, and record the actual cost.

    `request` has `max_tokens`. `status_of` returns the HTTP status of an error; a refused request costs nothing. Others stay
    reserved, as their cost is unknown.
    """
    meter = meter_of(ctx)
    usage = await meter.reserve(model, request)
    try:
        response = await send()
    except Exception as error:
        status = status_of(error)
        if status is not None and status < 500:
            await meter.give_back(usage)
        if status in _PERMANENT:
            raise NonRetryable(f"{model} refuses the request: {error}", "llm_rejected") from error
        raise
    await meter.settle(usage, tokens_of(response))
    return response
