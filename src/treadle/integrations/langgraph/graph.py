"""A LangGraph graph as a durable run.

Each superstep is a step of the run, named after its nodes; the state is in the thread's checkpoints. A superstep that a crash
interrupted continues from its checkpoint: nodes that had finished do not run again, because their writes are stored. A step
whose superstep was checkpointed before the crash finds a newer checkpoint than the one it was to continue from, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot, StreamMode

from treadle.engine import Engine
from treadle.integrations.langgraph.checkpointer import TreadleSaver
from treadle.llm.ledger import TaskMeter, TokenCounts, meter_of_task
from treadle.model.clock import Duration
from treadle.model.conversion import plain
from treadle.model.errors import ApprovalDenied, InvalidInput, InvalidPayload, NonRetryable, PayloadTooLarge
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Claim
from treadle.model.usage import Usage
from treadle.model.values import CODE_LIMIT, Json, encode, shown, storable, type_name
from treadle.workers.context import holder
from treadle.workers.functions.context import FunctionContext
from treadle.workers.references import Function

Decision = dict[str, Any]
"""The answer of a person: `approved`, and of an approval also `by`, `reason` and `context` (with `value` and `answer`)."""

MAX_SUPERSTEPS = 1000
_TITLE_LIMIT = 500


def answer_of(decision: Decision) -> Any:
    """Return the value with which the graph continues: the `answer` that the approver entered, else whether it was approved."""
    answer = decision.get("context", {}).get("answer")
    return answer if decision["approved"] and answer is not None else decision["approved"]


def durable_graph(
    engine: Engine,
    graph: Pregel[Any, Any, Any, Any],
    name: str,
    *,
    retry: RetryPolicy | int | None = None,
    timeout: Duration | None = None,
    config: RunnableConfig | None = None,
    approval: Mapping[str, Any] | None = None,
    answer: Callable[[Decision], Any] = answer_of,
    types: Iterable[type] = (),
    stream: Sequence[StreamMode] = ("messages", "custom"),
    **options: Any,
) -> Function[..., Any]:
    """Register the compiled graph as the durable function `name`, which takes `input` and optionally a `thread_id`.

        research = durable_graph(engine, builder.compile(), "research", retry=3)
        run = await engine.start(research, {"topic": "looms"})

    The run's result is the graph's output. Without a `thread_id`, the thread belongs to the run and is pruned with it. An
    `interrupt()` becomes an approval with the options `approval`; `answer` turns the decision, also a denial, into the value
    that `interrupt()` returns. `retry` and `timeout` apply to a superstep; a retry does not run its finished nodes again.
    `types` are classes of the state that checkpoints restore (see `TreadleSaver`). The run has one stream for each of LangGraph's
    modes in `stream`, named after it. `options` are those of `engine.function`.
    """
    if graph.checkpointer is None or graph.checkpointer is True:
        graph = graph.copy({"checkpointer": TreadleSaver(engine, types=types)})
    elif not isinstance(graph.checkpointer, TreadleSaver):
        raise InvalidInput(f"Compile the graph of {name} without a checkpointer, not with a {type_name(graph.checkpointer)}.")
    steps = _Supersteps(graph, {**(config or {})}, UsageMeter(engine), list(stream))
    limit = int((config or {}).get("recursion_limit", MAX_SUPERSTEPS))
    before, after = (_names(nodes, graph) for nodes in (graph.interrupt_before_nodes, graph.interrupt_after_nodes))

    async def ask(ctx: FunctionContext, title: str, context: dict[str, Json]) -> Decision:
        try:
            return {"approved": True, **await ctx.approval(title, context=context, **{"edits": True, **(approval or {})})}
        except ApprovalDenied as denied:
            return {"approved": False, "reason": str(denied)}

    async def run(ctx: FunctionContext, input: Any = None, thread_id: str | None = None) -> Any:  # noqa: A002
        thread = thread_id or ctx.run_id

        async def start(head: str | None) -> dict[str, Json]:
            return await steps.start(thread, head, input, ctx)

        async def advance(seen: str, answers: dict[str, Any] | None) -> dict[str, Json]:
            return await steps.advance(thread, seen, answers, ctx)

        head = None if thread_id is None else await ctx.step(steps.head, thread, name="head")
        state = await ctx.step(start, head, name="input", retry=retry)
        done: list[str] = []
        for _ in range(limit):
            nodes, answers = state["next"], None
            if state["interrupts"]:
                interrupts = state["interrupts"]
                decisions = await ctx.gather(
                    *(ask(ctx, interrupt["title"], {"value": interrupt["value"], "answer": None}) for interrupt in interrupts)
                )
                answers = {interrupt["id"]: answer(decision) for interrupt, decision in zip(interrupts, decisions, strict=True)}
            elif not nodes:
                return state["result"]
            elif stops := [*(node for node in done if node in after), *(node for node in nodes if node in before)]:
                decision = await ask(ctx, f"{name}: continue with {', '.join(nodes)}?", {"breakpoints": stops})
                if not decision["approved"]:
                    raise ApprovalDenied(decision["reason"])
            called = storable("+".join(dict.fromkeys(nodes)), CODE_LIMIT)
            state = await ctx.step(advance, state["checkpoint"], answers, name=called, retry=retry, timeout=timeout)
            done = nodes
        raise NonRetryable(
            f"The graph {name} has not ended after {limit} supersteps; raise `recursion_limit` in its config if that is right.",
            "recursion_limit",
        )

    return engine.function(name, **options)(run)


class _Supersteps:
    """The steps of such runs. Each may be repeated after a crash, and then does only what is left to do."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any], config: Any, meter: UsageMeter, modes: list[StreamMode]) -> None:
        self._graph = graph
        self._config = config
        self._meter = meter
        self._modes = modes

    def _on(self, thread: str) -> RunnableConfig:
        callbacks = self._config.get("callbacks") or []
        configurable = {**self._config.get("configurable", {}), "thread_id": thread}
        changed: Any = {**self._config, "configurable": configurable, "callbacks": [*callbacks, self._meter]}
        return cast("RunnableConfig", changed)

    async def head(self, thread: str) -> str | None:
        """Return the newest checkpoint of the thread."""
        return _checkpoint_id(await self._graph.aget_state(self._on(thread)))

    async def start(self, thread: str, head: str | None, given: Any, ctx: FunctionContext) -> dict[str, Json]:
        """Store the input, unless it is stored; return the state before the first nodes."""
        config = self._on(thread)
        state = await self._graph.aget_state(config)
        if _checkpoint_id(state) == head:
            await self._stream(given, config, ctx)
        elif any(task.name == START for task in state.tasks):  # a crash came between the input and its distribution
            await self._stream(None, config, ctx)
        return self._described(await self._graph.aget_state(config))

    async def advance(self, thread: str, seen: str, answers: dict[str, Any] | None, ctx: FunctionContext) -> dict[str, Json]:
        """Run the superstep that follows the checkpoint `seen`, unless it was run; return the state after it."""
        config = self._on(thread)
        state = await self._graph.aget_state(config)
        if _checkpoint_id(state) == seen:
            if answers is None:
                await self._stream(None, config, ctx)
            elif resume := {interrupt.id: answers[interrupt.id] for interrupt in state.interrupts if interrupt.id in answers}:
                await self._stream(Command(resume=resume), config, ctx)
            state = await self._graph.aget_state(config)
        return self._described(state)

    async def _stream(self, given: Any, config: RunnableConfig, ctx: FunctionContext) -> None:
        async for mode, chunk in self._graph.astream(
            given, config, stream_mode=self._modes, interrupt_before="*", durability="sync"
        ):
            entry: Json = _json(chunk)
            if mode == "messages":
                message, about = cast("Any", chunk)
                entry = {"node": about.get("langgraph_node"), "text": message.text}
            try:
                ctx.stream(mode).write(entry)
            except PayloadTooLarge as error:
                ctx.stream(mode).write({"error": str(error)})

    def _described(self, state: StateSnapshot) -> dict[str, Json]:
        name = self._graph.get_name()
        interrupts = [(task.name, interrupt) for task in state.tasks for interrupt in task.interrupts]
        described: dict[str, Json] = {
            "checkpoint": _checkpoint_id(state),
            "next": [task.name for task in state.tasks],  # `state.next` lacks nodes that have run, before they are applied
            "interrupts": [
                {"id": interrupt.id, "title": _title(name, node, interrupt.value), "value": _json(interrupt.value)}
                for node, interrupt in interrupts
            ],
        }
        if not state.tasks:
            values, outputs = state.values, self._graph.output_channels
            result = values if isinstance(outputs, str) else {key: values[key] for key in outputs if key in values}
            described["result"] = _json(result)
        return described


def _checkpoint_id(state: StateSnapshot) -> str | None:
    checkpoint_id: str | None = state.config["configurable"].get("checkpoint_id")
    return checkpoint_id


def _names(nodes: Any, graph: Pregel[Any, Any, Any, Any]) -> frozenset[str]:
    return frozenset(graph.nodes if nodes == "*" else nodes)


def _json(value: Any) -> Json:
    """Return a value of the state as JSON; what has no such form as text."""
    try:
        converted = plain(value)
        encode(converted)
        return converted
    except InvalidPayload:
        if isinstance(value, Mapping):
            return {str(key): _json(member) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [_json(member) for member in value]
        return shown(value)


def _title(graph: str, node: str, value: Any) -> str:
    """Return the question of an interrupt: its text, or the text under a usual name, or the value."""
    named = [value.get(key) for key in ("question", "title", "message", "description")] if isinstance(value, Mapping) else [value]
    question = next((text for text in named if isinstance(text, str) and text.strip()), None)
    return storable(question or f"{graph}: {node} asks about {encode(_json(value))}", _TITLE_LIMIT)


MAX_OUTPUT_TOKENS = 4096
"""The tokens that are reserved for the response of a model that does not tell its limit."""


class UsageMeter(AsyncCallbackHandler):
    """Reserves the maximum cost of each request of a chat model, and settles it with its usage.

    A request that could exceed the budget is not sent: it raises `budget_exhausted`.
    """

    raise_error = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._meters: dict[str, tuple[Claim, TaskMeter]] = {}
        self._open: dict[UUID, tuple[TaskMeter, Usage | None]] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Reserve."""
        held = holder.get()
        if held is None:
            return
        about, sent = metadata or {}, more.get("invocation_params") or {}
        model = sent.get("model") or sent.get("model_name") or about.get("ls_model_name") or "unknown"
        most = sent.get("max_tokens") or about.get("ls_max_tokens") or MAX_OUTPUT_TOKENS
        entry = self._meters.get(held.task.id)
        if entry is None or entry[0] != held.token:  # requests of one claim have one meter, so that no two share a number
            kernel = self._engine.kernel
            meter = meter_of_task(kernel.settings, kernel.store, kernel.ids, held.task)
            entry = self._meters[held.task.id] = (held.token, meter)
            while len(self._meters) > 1000:
                del self._meters[next(iter(self._meters))]
        request = {"max_tokens": most, "messages": [str(message.content) for message in messages[0]], "tools": sent.get("tools")}
        self._open[run_id] = (entry[1], await entry[1].reserve(str(model), request))

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Settle."""
        meter, usage = self._open.pop(run_id, (None, None))
        if meter is not None:
            usage_metadata = next((metadata for metadata in map(_usage, response.generations[0]) if metadata), {})
            cached = usage_metadata.get("input_token_details") or {}
            read, written = cached.get("cache_read") or 0, cached.get("cache_creation") or 0
            counts = TokenCounts.of_total(
                usage_metadata.get("input_tokens", 0), usage_metadata.get("output_tokens", 0), written, read
            )
            await meter.settle(usage, counts)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Keep the reservation of a request whose outcome is unknown; give back that of one that the service rejected."""
        meter, usage = self._open.pop(run_id, (None, None))
        if meter is not None and 400 <= int(getattr(error, "status_code", None) or 0) < 500:
            await meter.give_back(usage)


def _usage(generation: Any) -> dict[str, Any]:
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return dict(message.usage_metadata or {}) if isinstance(message, AIMessage) else {}
