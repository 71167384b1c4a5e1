"""How a prompt is described: a function that is given a desk and texts, and answers with what a model is told."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import get_type_hints

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from treadle.api.contract import Doc
from treadle.mcp.request_context import RequestContext
from treadle.mcp.resource import refused
from treadle.model.errors import TreadleError

Telling = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class Prompt:
    """Something that a person can have a model told."""

    name: str
    body: Telling

    @property
    def description(self) -> str:
        """What it is for."""
        return " ".join((self.body.__doc__ or "").split())

    @property
    def arguments(self) -> list[wire.PromptArgument]:
        """The texts that it takes."""
        hints = get_type_hints(self.body, include_extras=True)
        given = list(inspect.signature(self.body).parameters.values())[1:]
        return [
            wire.PromptArgument(name=each.name, description=_said(hints[each.name]), required=each.default is each.empty)
            for each in given
        ]

    def listed(self) -> wire.Prompt:
        """As clients are told of it."""
        return wire.Prompt(name=self.name, description=self.description, arguments=self.arguments)

    async def tell(self, desk: RequestContext, given: Mapping[str, str]) -> wire.GetPromptResult:
        """The message; a protocol error for arguments that do not fit, and for errors of the engine."""
        known = {each.name: each.required for each in self.arguments}
        missing = [name for name, required in known.items() if required and not given.get(name)]
        unknown = sorted(set(given) - set(known))
        if missing or unknown:
            what = f"needs {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
            raise MCPError(wire.INVALID_PARAMS, f"The prompt {self.name} {what}.")
        try:
            text = await self.body(desk, **given)
        except TreadleError as error:
            raise refused(error) from error
        message = wire.PromptMessage(role="user", content=wire.TextContent(text=text))
        return wire.GetPromptResult(description=self.description, messages=[message])


def prompt(body: Telling) -> Prompt:
    """A prompt of the function's name."""
    return Prompt(body.__name__, body)


def _said(hint: object) -> str:
    return next((each.text for each in getattr(hint, "__metadata__", ()) if isinstance(each, Doc)), "")
