"""The result of a script: its outputs, or an error, derived from the answer and the exit status of its process.

The answer is not trusted: the script itself may have written it.
"""

from __future__ import annotations

import signal

import msgspec

from treadle.model.errors import InvalidPayload, PayloadTooLarge
from treadle.model.values import Json, encode
from treadle.workers.scripts.errors import (
    ScriptError,
    ScriptKilled,
    ScriptMemory,
    ScriptResultInvalid,
    ScriptSyntax,
    ScriptTimeout,
)
from treadle.workers.scripts.host import Ended
from treadle.workers.scripts.limits import ScriptLimits
from treadle.workers.scripts.sandbox import wire

_PROBLEMS: dict[str, type[ScriptError]] = {cls.code: cls for cls in (ScriptError, ScriptSyntax, ScriptMemory, ScriptResultInvalid)}


def outputs(ended: Ended, answer: bytes | None, limits: ScriptLimits, first_line: int, source: str) -> dict[str, Json]:
    """Return the script's `result`, or raise the matching `ScriptError`."""
    if (failure := _failure(ended, limits, source)) is not None:
        raise failure
    if answer is None:
        raise ScriptKilled("The script's process ended without a result; it may have called exit.", source=source)
    try:
        received = msgspec.json.decode(answer.decode())
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ScriptResultInvalid(f"The result is not JSON: {error}.", source=source) from None
    match received:
        case {"result": dict(result)}:
            return _storable(result, limits, source)
        case {"problem": str(code), "message": str(message), "type": str() | None as kind, "line": int() | None as line} if (
            code in _PROBLEMS
        ):
            shown = first_line + line - 1 if line else first_line if code == ScriptSyntax.code else None
            raise _PROBLEMS[code](message, source=source, line=shown, type=kind)
        case _:
            raise ScriptResultInvalid("The script's process wrote an invalid answer.", source=source)


def _failure(ended: Ended, limits: ScriptLimits, source: str) -> ScriptError | None:
    if ended.timeout:
        return ScriptTimeout(f"The script took longer than {limits.wall_for:g} s and was stopped.", source=source)
    if ended.status == -signal.SIGXCPU or (ended.status == -signal.SIGKILL and ended.cpu_for >= limits.cpu_for):
        return ScriptTimeout(f"The script used more than {limits.cpu_for:g} s of CPU time and was stopped.", source=source)
    if ended.status == wire.EXIT_MEMORY:
        return ScriptMemory(f"The script needs more than {limits.memory_bytes} bytes of memory.", source=source)
    if ended.status < 0:
        return ScriptKilled(f"The script's process was killed by {_signal_name(-ended.status)}.", source=source)
    if ended.status > 0:
        return ScriptKilled(f"The script's process ended with status {ended.status} without a result.", source=source)
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _storable(result: dict[str, Json], limits: ScriptLimits, source: str) -> dict[str, Json]:
    try:
        encode(result, "result", limits.output_bytes)
    except (InvalidPayload, PayloadTooLarge) as error:
        raise ScriptResultInvalid(str(error), source=source) from None
    return result
