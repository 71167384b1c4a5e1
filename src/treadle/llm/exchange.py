"""One request to the model and its response, resent while the service is busy or does not answer.

The SDK's own retries are off. After a 429 it waits for `retry-after`; after 529 and other service errors, timeouts, broken
connections and malformed responses it backs off. `max_sends` and `patience` bound the total.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.llm.config import LLMConfig, LLMError, scrubbed
from treadle.llm.ledger import TokenCounts
from treadle.model.retry import Backoff
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of the model; `input` is None if its JSON is invalid."""

    id: str
    tool: str
    input: dict[str, Json] | None
    raw: str


@dataclass(slots=True)
class Answer:
    """One message of the model, with its usage; made of the events that `add` takes."""

    stop_reason: str = ""
    content: list[dict[str, Any]] = field(default_factory=list)
    """Blocks in the form in which the next request sends them back."""
    uses: list[ToolUse] = field(default_factory=list)
    tokens: TokenCounts = field(default_factory=TokenCounts)
    begun: bool = False
    ended: bool = False
    _open: dict[int, dict[str, Any]] = field(default_factory=dict)
    _inputs: dict[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the message."""
        return "".join(block.get("text", "") for block in self.content if block.get("type") == "text")

    def add(self, event: Any) -> str:
        """Add an event; return the readable text that it adds: text, or the JSON of a tool's input."""
        match getattr(event, "type", None):
            case "message_start":
                self.begun = True
                self._count(event.message.usage)
            case "content_block_start":
                self._open[event.index] = event.content_block.model_dump(mode="json", exclude_none=True, exclude_unset=True)
            case "content_block_delta":
                return self._delta(event.index, event.delta)
            case "content_block_stop":
                self._close(event.index)
            case "message_delta":
                self.stop_reason = event.delta.stop_reason or ""
                self._count(event.usage)
            case "message_stop":
                self.ended = True
            case None:
                raise ValueError("an event without a type")
        return ""  # also for event types newer than this code

    def check(self) -> None:
        """Raise `ValueError` unless the message is complete."""
        if not self.begun:
            raise ValueError("the response is not a stream of message events")
        if not self.ended or self._open:
            raise ValueError("the stream ended within the message")

    def _delta(self, index: int, delta: Any) -> str:
        block = self._open[index]
        match delta.type:
            case "text_delta":
                block["text"] = block.get("text", "") + delta.text
                return str(delta.text)
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta.partial_json
                return str(delta.partial_json)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.thinking
            case "signature_delta":
                block["signature"] = delta.signature
        return ""

    def _close(self, index: int) -> None:
        block = self._open.pop(index)
        if block.get("type") == "tool_use":
            raw = self._inputs.pop(index, "")
            parsed = _object(raw) if raw else block.get("input") or {}
            self.uses.append(ToolUse(str(block["id"]), str(block["name"]), parsed, raw))
            block["input"] = parsed or {}
        if block.get("type") == "text":
            block["text"] = block.get("text", "").encode("utf-8", "replace").decode()
        if block.get("type") != "text" or block["text"]:  # empty text blocks must not be sent back
            self.content.append(block)

    def _count(self, usage: Any) -> None:
        """Take over token counts, which are cumulative."""
        before = self.tokens
        self.tokens = TokenCounts(
            _number(usage, "input_tokens", before.input_tokens),
            _number(usage, "output_tokens", before.output_tokens),
            _number(usage, "cache_creation_input_tokens", before.cache_write_tokens),
            _number(usage, "cache_read_input_tokens", before.cache_read_tokens),
        )


def _number(usage: Any, name: str, before: int) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and value >= 0 else before


def _object(raw: str) -> dict[str, Json] | None:
    try:
        document = json.loads(raw)
        json.dumps(document, ensure_ascii=False).encode()  # JSON allows half a surrogate pair, which cannot be encoded
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


OnText = Callable[[str], Awaitable[None]]
"""Receives the text of the current response so far."""

_BACKOFF = Backoff(0.5, 8.0, jitter=0.25)
_MALFORMED_SENDS = 3
_MESSAGE_LIMIT = 500
_BUSY_TYPES = ("overloaded_error", "rate_limit_error", "api_error", "timeout_error")
_BUSY_STATES = (408, 409, 429)
_MALFORMED = (ValueError, AttributeError, KeyError, TypeError, IndexError)


class SendFailed(LLMError):
    """A request that failed; `unknown` if the service may have done (and billed) the work."""

    def __init__(self, code: str, message: str, *, again: bool = True, after: float | None = None, unknown: bool = False) -> None:
        """`again` if another attempt may succeed, `after` the seconds that the service asks to wait for."""
        super().__init__(code, message)
        self.again, self.after, self.unknown = again, after, unknown


class Exchange:
    """Sends requests through a client of the SDK, asynchronous or not."""

    def __init__(
        self,
        client: Any,
        config: LLMConfig,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._config = config
        self._sleep = sleep
        self._random = random
        self._secrets = secrets

    async def send(self, request: dict[str, Any], on_text: OnText | None = None) -> Answer:
        """Return the response, or raise `SendFailed`. Service errors raise nothing else."""
        waited, unknown, malformed = 0.0, False, 0
        for number in range(1, self._config.max_sends + 1):
            try:
                return await self._send(request, on_text)
            except Exception as error:
                failure = self._failure(error)
                if failure is None:
                    raise
            unknown = unknown or failure.unknown
            malformed += failure.error_code == "llm_malformed"
            wait = self._wait(number, failure)
            if not failure.again or malformed >= _MALFORMED_SENDS:
                raise SendFailed(failure.error_code, str(failure), unknown=unknown)
            if number == self._config.max_sends or waited + wait > self._config.patience:
                message = f"{failure} Failed after {number} sends and {waited:.1f} s of waiting"
                hint = f"; the service asks for a delay of {failure.after:g} s." if failure.after else "."
                raise SendFailed(failure.error_code, message + hint, unknown=unknown)
            waited += wait
            await self._sleep(wait)
        raise AssertionError("unreachable")

    def _wait(self, number: int, failure: SendFailed) -> float:
        if failure.after is not None:
            return max(failure.after, 0.0)
        return _BACKOFF.delay(number - 1, self._random())

    async def _send(self, request: dict[str, Any], on_text: OnText | None) -> Answer:
        answer, text = Answer(), ""
        async for event in self._events(request):
            if (more := answer.add(event)) and on_text is not None:
                text += more
                await on_text(text)
        answer.check()
        return answer

    async def _events(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        create = self._client.messages.create
        if _blocks(self._client):
            stream = await asyncio.to_thread(create, **request, stream=True)
            iterator = iter(stream)
            while (event := await asyncio.to_thread(next, iterator, None)) is not None:
                yield event
            return
        stream = create(**request, stream=True)
        if inspect.isawaitable(stream):
            stream = await stream
        try:
            async for event in stream:
                yield event
        finally:
            await stream.close()

    def _failure(self, error: Exception) -> SendFailed | None:
        """Classify an error; None if it does not come from the service."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "APIStatusError" in kinds:
            return self._status_failure(error)
        if "APITimeoutError" in kinds or "TimeoutException" in kinds:
            return SendFailed("llm_timeout", "The model's service did not answer in time.", unknown=True)
        if "APIConnectionError" in kinds or "TransportError" in kinds:
            return SendFailed("llm_timeout", "The connection to the model's service broke, or could not be opened.", unknown=True)
        if isinstance(error, _MALFORMED) or "APIResponseValidationError" in kinds or "APIError" in kinds:
            message = self._words(str(error) or type(error).__name__)
            return SendFailed("llm_malformed", f"The model's service sent an invalid message: {message}.", unknown=True)
        return None

    def _status_failure(self, error: Any) -> SendFailed:
        status, kind = error.status_code, getattr(error, "type", None)
        message = self._words(getattr(error, "api_message", None) or kind or "no reason given")
        after = _seconds(error.response.headers)
        if status == 429 or kind == "rate_limit_error":
            return SendFailed("llm_rate_limited", f"The model's service limits the rate: {message}.", after=after)
        if status >= 500 or status in _BUSY_STATES or kind in _BUSY_TYPES:
            return SendFailed("llm_overloaded", f"The model's service is overloaded or failing ({status}): {message}.", after=after)
        return SendFailed("llm_rejected", f"The model's service rejects the request ({status}): {message}.", again=False)

    def _words(self, text: str) -> str:
        return scrubbed(text, self._secrets)[:_MESSAGE_LIMIT].rstrip(". ")


def _blocks(client: Any) -> bool:
    """Whether calls of the client block: the SDK's synchronous client, or any similar one."""
    return "Anthropic" in {kind.__name__ for kind in type(client).__mro__}


def _seconds(headers: Any) -> float | None:
    """Return the delay that the service requests, in milliseconds or seconds; other formats are ignored."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name)) * factor
        except (TypeError, ValueError):
            continue
        if not math.isnan(seconds):
            return seconds
    return None
