"""Exit codes, and their errors."""

from __future__ import annotations

from treadle.model import errors
from treadle.model.errors import (
    Forbidden,
    IllegalMove,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    TooManyAttempts,
    TreadleError,
    Unauthorized,
)

OK = 0
FAILED = 1
BAD_INPUT = 2
NOT_FOUND = 3
STORE_TROUBLE = 4
REFUSED = 5
TIME_RAN_OUT = 6
BUG = 70
INTERRUPTED = 130

EXIT_CODES = {
    OK: "done",
    FAILED: "the task, run, check or demo failed",
    BAD_INPUT: "bad usage or input; nothing was changed",
    NOT_FOUND: "not found",
    STORE_TROUBLE: "the store or the server cannot be used: unreachable, read-only, locked, full, damaged, wrong schema",
    REFUSED: "refused: a rule, the state of the entity or the token forbids it",
    TIME_RAN_OUT: "the wait timed out; the work continues",
    BUG: "a bug in Treadle",
    INTERRUPTED: "interrupted",
}


class WaitTimedOut(TreadleError):
    """`--wait-for` passed before the task or run ended."""

    code = "wait_timed_out"


def exit_code_of(error: TreadleError) -> int:
    """Return the exit code for an error."""
    match error:
        case InvalidInput():
            return BAD_INPUT
        case NotFound():
            return NOT_FOUND
        case StoreError():
            return STORE_TROUBLE
        case IllegalMove() | Refused() | Unauthorized() | Forbidden() | TooManyAttempts():
            return REFUSED
        case WaitTimedOut():
            return TIME_RAN_OUT
        case _:
            return FAILED


def exit_code_of_code(code: str) -> int:
    """Return the exit code for an error code."""
    known = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TreadleError)]
    return next((exit_code_of(kind.__new__(kind)) for kind in known if kind.code == code), FAILED)
