"""Handlers that a child process can import."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from treadle.model.errors import NonRetryable
from treadle.model.outcomes import Waiting
from treadle.workers.context import Context


class Picky(Exception):
    """Cannot be unpickled: its arguments are not what it is made of."""

    def __init__(self, colour: str, size: int) -> None:
        super().__init__(f"{colour} {size}")


class Plain(dict[str, Any]):
    """A dict of a type that others may not have."""


def where(payload: Any, ctx: Context) -> dict[str, Any]:
    ctx.log("from afar", level="warning", pid=os.getpid())
    ctx.progress(0.5, "half")
    return {"pid": os.getpid(), "payload": payload, "attempt": ctx.attempt}


async def slowly(payload: Any) -> dict[str, Any]:
    return {"async": True}


def waiting(payload: Any) -> Waiting:
    return Waiting(500, {"page": 2})


class Trap:
    """Ends the thread that unpickles it."""

    def __reduce__(self) -> Any:
        return sys.exit, ()


def trapped(payload: Any) -> Waiting:
    return Waiting(500, {"trap": Trap()})


def broken(payload: Any) -> None:
    raise ValueError("no such colour")


def picky(payload: Any) -> None:
    raise Picky("red", 3)


def final(payload: Any) -> None:
    raise NonRetryable("never", "card_stolen")


def leave(payload: Any) -> None:
    raise SystemExit(4)


def die(payload: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def a_list(payload: Any) -> Any:
    return [1]


def not_a_number(payload: Any) -> Any:
    return {"x": float("nan")}


def own_type(payload: Any) -> Any:
    return Plain(a=Plain(b=1))


def hang_with_a_child(payload: Any) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(payload["file"]).write_text(str(child.pid))
    child.wait()


def hang(payload: Any) -> None:
    Path(payload["file"]).write_text(str(os.getpid()))
    time.sleep(60)  # until it is killed


class Panic(BaseException):
    """Like the panics of native extensions: not an `Exception`."""


RAISED: dict[str, BaseException] = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt("stop"),
    "CancelledError": asyncio.CancelledError("inner"),
    "GeneratorExit": GeneratorExit("gone"),
    "StopIteration": StopIteration("empty"),
    "StopAsyncIteration": StopAsyncIteration("empty"),
    "BaseExceptionGroup": BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()]),
    "Panic": Panic("index out of bounds"),
}


def raise_named(payload: Any) -> None:
    raise RAISED[payload["kind"]]
