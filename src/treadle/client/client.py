"""The client: each call of the contract becomes one request, derived from its description.

Problems that the server reports are raised as the errors that the same call raises on a store.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

import msgspec

from treadle.api.contract import KEY, MODEL_HEADER, PREFIX, Call, calls_of
from treadle.api.facade import Api, protocol_of
from treadle.api.wire import from_json, to_builtins
from treadle.goals import records as goals
from treadle.model import errors, external
from treadle.model.errors import (
    Forbidden,
    InvalidInput,
    InvalidPayload,
    MissingDependency,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    TreadleError,
    Unauthorized,
)
from treadle.model.ids import Ref
from treadle.model.values import encode

if TYPE_CHECKING:
    from treadle.client.handle import RemoteHandle

try:
    import httpx
except ImportError:
    raise MissingDependency("The client needs httpx: pip install 'treadle[client]'.") from None

TIMEOUT = 10.0
"""Timeout of a request in seconds, in addition to the time that the call asks the server to wait."""

_BODY_LIMIT = 2**31
"""Bytes; servers have a much lower limit, and report it."""


class Client(Api):
    """The contract over HTTP. Use it in an `async with`, or `close` it. Safe for concurrent use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        for_model: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout
        headers = {"Accept": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {_line(token, 'token')}"})
        headers |= {MODEL_HEADER: "1"} if for_model else {}
        try:
            if (place := urlsplit(url)).scheme not in ("http", "https") or not place.hostname or place.port == 0:
                raise ValueError("it has no host")
            # Loading the trusted certificates takes longer than most commands, and a plain connection needs none of them.
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if place.scheme == "http" else True
            self._http = httpx.AsyncClient(
                base_url=f"{self.url}{PREFIX}", headers=headers, timeout=timeout, transport=transport, verify=verify
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise InvalidInput(f"{url!r} is not the address of a server: {error}. It looks like http://127.0.0.1:8787.") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def handle(self, work: Ref) -> RemoteHandle:
        """Return the handle of any task or run, by its id: its state, its result, and the operations on it."""
        from treadle.client.handle import RemoteHandle

        return RemoteHandle(self, _id(work))

    def make_group(self, name: str) -> Any:
        """The calls of the group, each of which sends one request."""
        if name == "events":
            from treadle.client.events import RemoteEvents

            return RemoteEvents(self._http, self.url, self.send)
        protocol = protocol_of(name)
        methods = {call.name: _method(call, self.send) for call in calls_of(name, protocol)}
        return type(f"Remote{protocol.__name__}", (protocol,), methods)()

    async def send(self, call: Call, options: dict[str, Any]) -> Any:
        """Send the call; raises the error that the server returns."""
        path = call.route.path
        for parameter in call.path:
            path = path.replace(f"{{{parameter.name}}}", quote(str(_id(options[parameter.name])), safe=""))
        others = {parameter.name: options[parameter.name] for parameter in call.others if parameter.name in options}
        headers = {"Idempotency-Key": _line(options[KEY], "idempotency key")} if options.get(KEY) is not None else {}
        waits = float(options.get("wait_for") or 0)
        sent: dict[str, Any] = {}
        if call.in_query:
            sent["params"] = [pair for name, value in others.items() for pair in _query(name, value)]
        elif call.others:
            sent["content"] = _body(others)
            headers["Content-Type"] = "application/json"
        body = await self._request(call.route.method, path, self._timeout + waits, headers=headers, **sent)
        try:
            return from_json(body, call.returns)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"{self.url} returned a response that this client cannot read: {error}.") from None

    async def _request(self, method: str, path: str, timeout: float, **sent: Any) -> bytes:
        try:
            answer = await self._http.request(method, path.lstrip("/"), timeout=timeout, **sent)
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"{self.url} does not respond: {error or type(error).__name__}.") from None
        except httpx.InvalidURL as error:
            raise InvalidInput(f"A parameter is too long for a URL or cannot be part of one: {error}.") from None
        if answer.is_success:
            return answer.content
        raise error_of(answer.status_code, answer.content)


def _method(call: Call, send: Callable[[Call, dict[str, Any]], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def method(*args: Any, **options: Any) -> Any:
        bound = call.signature.bind(*args, **options).arguments
        return await send(call, {name: value for name, value in bound.items() if name != "self"})

    method.__doc__ = call.doc
    return method


def _line(text: str, what: str) -> str:
    """Check that a text can be sent in a header; it may be secret, so the error does not contain it."""
    if not text.isascii() or not text.isprintable():
        raise InvalidInput(f"The {what} contains characters that cannot be sent: use printable ASCII only.")
    return text


def _body(others: dict[str, Any]) -> bytes:
    """The parameters as JSON; values that are not JSON are refused, as a store refuses them."""
    try:
        plain = to_builtins(others)
    except (NotImplementedError, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"The request is not JSON: {error}") from None
    return encode(plain, "request", _BODY_LIMIT).encode()


def _id(value: Any) -> Any:
    """A value in a path or a query; a record, such as the return value of another call, stands for its id."""
    return getattr(value, "id", value)


def _query(name: str, value: Any) -> list[tuple[str, str]]:
    if (value := _id(value)) is None:
        return []
    if isinstance(value, list | tuple | set | frozenset):
        return [pair for member in value for pair in _query(name, member)]
    if isinstance(value, bool):
        return [(name, "true" if value else "false")]
    return [(name, value.isoformat() if isinstance(value, datetime) else str(value))]


class ServerUnreachable(StoreUnavailable, code="server_unreachable"):
    """The server does not respond: it is down, at another address, or the network is."""


class UnexpectedAnswer(StoreError, code="unexpected_answer"):
    """The response is not from Treadle: there is a proxy or another program at that address."""


_BY_STATUS: dict[int, type[TreadleError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Refused,
    413: InvalidInput,
    422: InvalidInput,
    429: Refused,
    503: StoreError,
}


_BY_CODE = errors.classes_by_code(errors, external, goals)


def error_of(status: int, body: bytes) -> TreadleError:
    """The error of a problem response: the server's message, with the class of its code (or of the status)."""
    try:
        report: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        code, detail = str(report["code"]), str(report["detail"])
    except (msgspec.DecodeError, KeyError):
        return UnexpectedAnswer(f"The server returned {status} without a problem report. Is it a Treadle server?")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, TreadleError)
    error = kind.__new__(kind)  # only the server has its constructor arguments
    TreadleError.__init__(error, detail, code=code)
    error.problem = report  # type: ignore[attr-defined]
    return error
