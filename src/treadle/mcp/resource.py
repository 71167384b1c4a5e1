"""Resources under `afl://`: what there is to read, by address; JSON, and text for sources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate

from treadle.api.contract import ApiRecord
from treadle.api.wire import to_builtins
from treadle.mcp.answers import details, text_of
from treadle.mcp.request_context import RequestContext
from treadle.model.errors import InvalidInput, NotFound, TreadleError

JSON, TEXT, MARKDOWN = "application/json", "text/plain", "text/markdown"

Reading = Callable[..., Awaitable[ApiRecord | str]]


@dataclass(frozen=True)
class Resource:
    """Something to read: at one address, or at all that fit a template (RFC 6570)."""

    uri: str
    name: str
    description: str
    mime_type: str
    body: Reading

    @cached_property
    def template(self) -> UriTemplate:
        """The address as a template."""
        return UriTemplate.parse(self.uri)

    @property
    def is_template(self) -> bool:
        """Whether something has to be filled in; what is asked for behind `?` may be left out."""
        return bool(set(self.template.variable_names) - self.template.query_variable_names)

    @property
    def bare(self) -> str:
        """The address without what may be asked for behind `?`."""
        return self.uri.partition("{?")[0]

    def listed(self) -> wire.Resource:
        """As clients are told of it."""
        return wire.Resource(uri=self.bare, name=self.name, description=self.description, mime_type=self.mime_type)

    def listed_template(self) -> wire.ResourceTemplate:
        """As clients are told of it, if something can be filled in."""
        return wire.ResourceTemplate(uri_template=self.uri, name=self.name, description=self.description, mime_type=self.mime_type)

    async def read(self, desk: RequestContext, uri: str, filled: Mapping[str, Any]) -> wire.ReadResourceResult:
        """What is there; errors of the engine are protocol errors with the code in their data."""
        try:
            found = await self.body(desk, **filled)
        except TreadleError as error:
            raise refused(error, uri) from error
        text = found if isinstance(found, str) else text_of(to_builtins(found))
        return wire.ReadResourceResult(contents=[wire.TextResourceContents(uri=uri, mime_type=self.mime_type, text=text)])


def resource(uri: str, name: str, mime_type: str = JSON) -> Callable[[Reading], Resource]:
    """A resource that is read by a function; what the template names are its parameters."""

    def made(body: Reading) -> Resource:
        return Resource(uri, name, " ".join((body.__doc__ or "").split()), mime_type, body)

    return made


def refused(error: TreadleError, uri: str | None = None) -> MCPError:
    """The error as the protocol has it; `data` has the stable code."""
    code = wire.INVALID_PARAMS if isinstance(error, NotFound | InvalidInput) else wire.INTERNAL_ERROR
    where = {} if uri is None else {"uri": uri}
    return MCPError(code, f"{error.code}: {error}", {"code": error.code, **where, **details(error)})
