"""Problem responses of a server, as the errors that the same call raises on a store."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.goals import records as goals
from treadle.model import errors, external
from treadle.model.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    TreadleError,
    Unauthorized,
)


class ServerUnreachable(StoreUnavailable):
    """The server does not respond: it is down, at another address, or the network is."""

    code = "server_unreachable"


class UnexpectedAnswer(StoreError):
    """The response is not from Treadle: there is a proxy or another program at that address."""

    code = "unexpected_answer"


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


def _known() -> dict[str, type[TreadleError]]:
    named = [each for module in (errors, external, goals) for each in vars(module).values() if isinstance(each, type)]
    return {each.code: each for each in named if issubclass(each, TreadleError)}


_BY_CODE = _known()


def error_of(status: int, body: bytes) -> TreadleError:
    """The error of a problem response: the server's message, with the class of its code (or of the status)."""
    try:
        told: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        code, detail = str(told["code"]), str(told["detail"])
    except (msgspec.DecodeError, KeyError):
        return UnexpectedAnswer(f"The server returned {status} without a problem report. Is it a Treadle server?")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, TreadleError)
    error = kind.__new__(kind)  # only the server has its constructor arguments
    Exception.__init__(error, detail)
    error.code = code  # type: ignore[misc]
    error.problem = told  # type: ignore[attr-defined]
    return error
