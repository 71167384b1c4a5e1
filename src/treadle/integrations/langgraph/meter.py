"""The usage of chat models in nodes counts against the budget of their run, through LangChain's callbacks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from treadle.engine import Engine
from treadle.llm.answers import Answer
from treadle.llm.ledger import TaskMeter
from treadle.llm.prices import Prices, parse_prices
from treadle.model.tasks import Claim
from treadle.model.usage import Usage, micros
from treadle.workers.context import holder

MOST_OUTPUT = 4096
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
        most = sent.get("max_tokens") or about.get("ls_max_tokens") or MOST_OUTPUT
        known = self._meters.get(held.task.id)
        if known is None or known[0] != held.token:  # requests of one claim have one meter, so that no two share a number
            kernel = self._engine.kernel
            prices, limit = Prices(parse_prices(kernel.settings.llm_prices)), kernel.settings.llm_budget
            default = None if limit is None else micros(limit, "TREADLE_LLM_BUDGET")
            meter = TaskMeter(kernel.store, kernel.ids.new_id, prices, held.task, default)
            known = self._meters[held.task.id] = (held.token, meter)
            while len(self._meters) > 1000:
                del self._meters[next(iter(self._meters))]
        request = {"max_tokens": most, "messages": [str(each.content) for each in messages[0]], "tools": sent.get("tools")}
        self._open[run_id] = (known[1], await known[1].reserve(str(model), request))

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Settle."""
        meter, usage = self._open.pop(run_id, (None, None))
        if meter is not None:
            told = next((each for each in map(_usage, response.generations[0]) if each), {})
            cached = told.get("input_token_details") or {}
            read, written = cached.get("cache_read") or 0, cached.get("cache_creation") or 0
            answer = Answer(
                input_tokens=max(told.get("input_tokens", 0) - read - written, 0),
                output_tokens=told.get("output_tokens", 0),
                cache_write_tokens=written,
                cache_read_tokens=read,
            )
            await meter.settle(usage, answer)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Keep the reservation of a request whose outcome is unknown; give back that of one that the service rejected."""
        meter, usage = self._open.pop(run_id, (None, None))
        if meter is not None and 400 <= int(getattr(error, "status_code", None) or 0) < 500:
            await meter.give_back(usage)


def _usage(generation: Any) -> dict[str, Any]:
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return dict(message.usage_metadata or {}) if isinstance(message, AIMessage) else {}
