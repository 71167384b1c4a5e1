"""The conversation with a model about one step, from the prompt to an answer that fits the facet's returns."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.llm.config import LLMConfig, LLMError
from treadle.llm.exchange import Answer, Exchange, OnText, SendFailed, ToolUse
from treadle.llm.ledger import Meter
from treadle.llm.tools import Toolbox, check_object, summary
from treadle.model.errors import InvalidInput, NonRetryable, PayloadTooLarge
from treadle.model.values import Json, encode

PROMPT_LIMIT = 4 * 1024 * 1024
"""Characters of a template with its values; no model reads as many."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Json]) -> str:
    """Replace each `{name}` that has a value; unknown names and other braces stay.

    Text is inserted literally, other values as JSON. Inserted text is not expanded again. A prompt that would be longer than
    `PROMPT_LIMIT` raises `NonRetryable` before it is built.
    """
    counts = Counter(name for name in _PLACEHOLDER.findall(text) if name in values)
    inserted = {name: as_text(values[name]) for name in counts}
    size = len(text) + sum(count * len(inserted[name]) for name, count in counts.items())
    if size > PROMPT_LIMIT:
        raise NonRetryable(
            f"The prompt would have {size} characters; the limit is {PROMPT_LIMIT}. Insert shorter values, or fewer.",
            PayloadTooLarge.code,
        )
    return _PLACEHOLDER.sub(lambda place: inserted.get(place[1], place[0]), text)


def as_text(value: Json) -> str:
    """Render a value for a model."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class Conversation:
    """The exchanges of one step; call `run` once."""

    exchange: Exchange
    config: LLMConfig
    toolbox: Toolbox
    meter: Meter
    model: str
    system: str
    on_text: OnText | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, prompt: str) -> dict[str, Json]:
        """Return the facet's returns, or raise `LLMError`. Other tools are called on request; unusable answers are sent back."""
        self.messages.append({"role": "user", "content": prompt})
        retries = 0
        for _ in range(self.config.max_turns):
            answer = await self._ask()
            if answer.content:
                self.messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason == "pause_turn":
                continue
            results: list[dict[str, Any]] = []
            wrong: LLMError | None = None
            for use in answer.uses:
                if use.tool != self.toolbox.target:
                    results.append(await self._call(use, answer))
                    continue
                result, wrong = self._read(use, answer)
                if wrong is None:
                    return result
                results.append(_result(use, f"{wrong} Call {use.tool} again with an answer that fits its schema.", True))
            if not answer.uses:
                wrong = self._nothing(answer)
            if wrong is not None:
                retries += 1
                if retries > self.config.max_retries:
                    raise LLMError(wrong.error_code, f"{wrong} That was retry {retries} of {retries}.")
            self.messages.append({"role": "user", "content": results or self._reminder(wrong)})
        raise LLMError("too_many_turns", f"The model gave no answer in {self.config.max_turns} turns.")

    async def _ask(self) -> Answer:
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.config.max_tokens,
            "messages": list(self.messages),
            "tools": self.toolbox.definitions,
        }
        if self.system:
            request["system"] = self.system
        usage = await self.meter.reserve(self.model, request)
        try:
            answer = await self.exchange.send(request, self.on_text)
        except SendFailed as error:
            if not error.unknown:
                await self.meter.give_back(usage)
            raise
        await self.meter.settle(usage, answer.tokens)
        if answer.stop_reason == "refusal":
            raise LLMError("model_refused", "The model declined to answer.")
        if answer.stop_reason == "model_context_window_exceeded":
            raise LLMError("context_exceeded", "The conversation no longer fits the model's context window.")
        return answer

    async def _call(self, use: ToolUse, answer: Answer) -> dict[str, Any]:
        if use.input is None:
            reason = _cut_off(self.config) if answer.stop_reason == "max_tokens" else "The input is not a JSON object."
            return _result(use, reason, True)
        text, failed = await self.toolbox.call(use.tool, use.input)
        return _result(use, text, failed)

    def _read(self, use: ToolUse, answer: Answer) -> tuple[dict[str, Json], LLMError | None]:
        if use.input is None:
            if answer.stop_reason == "max_tokens":
                return {}, LLMError("answer_cut_off", _cut_off(self.config))
            return {}, LLMError("answer_not_json", f"The answer is not a JSON object: {use.raw[:200]!r}.")
        result, problems = check_object(self.toolbox.program, self.toolbox.facet.returns, use.input)
        if problems and answer.stop_reason == "max_tokens":
            return {}, LLMError("answer_cut_off", _cut_off(self.config))
        if problems:
            return {}, LLMError("answer_mismatch", f"The answer does not fit the declared returns: {summary(problems)}.")
        try:
            encode(result, "answer")
        except InvalidInput as error:
            return {}, LLMError("answer_mismatch", f"The answer cannot be stored: {error}")
        return result, None

    def _nothing(self, answer: Answer) -> LLMError:
        """Explain a message without any tool call."""
        if answer.stop_reason == "max_tokens":
            return LLMError("answer_cut_off", _cut_off(self.config))
        if not answer.text.strip():
            return LLMError("answer_empty", "The model returned nothing.")
        return LLMError("answer_missing", f"The model answered in text and did not call {self.toolbox.target}.")

    def _reminder(self, wrong: LLMError | None) -> str:
        return f"{wrong or ''} Give the final answer by calling the tool {self.toolbox.target}.".strip()


def _result(use: ToolUse, text: str, failed: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": use.id, "content": text}
    return result | {"is_error": True} if failed else result


def _cut_off(config: LLMConfig) -> str:
    return f"The answer was cut off after max_tokens ({config.max_tokens}): it must be shorter."
