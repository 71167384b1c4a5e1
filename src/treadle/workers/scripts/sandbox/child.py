"""The process of one script: applies the limits, reads the request, runs the code, writes the answer."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import types
from typing import Any, NoReturn

from . import names, wire
from .limits import Limits

CHANNEL = 3
"""The descriptor of the request and the answer; 0, 1 and 2 are /dev/null, and no others are open."""

HIGHEST = 256
"""Upper bound of the parent's descriptors, which its own limit enforces."""

_MESSAGE_LIMIT = 4_000

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def serve(channel: int, limits: Limits) -> NoReturn:
    """Run the script that arrives on the channel, then exit. Called in a fresh fork of the parent; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.dup2(channel, CHANNEL)
        os.closerange(CHANNEL + 1, HIGHEST)
        limits.apply()
        gc.enable()
        wire.write_frame(CHANNEL, _answer(wire.read_frame(CHANNEL), limits))
        status = 0
    except MemoryError:
        status = wire.EXIT_MEMORY
    finally:
        os._exit(status)


def _answer(request: bytes, limits: Limits) -> bytes:
    asked = json.loads(request)
    del request
    if "code" not in asked:
        return _encode({"result": limits.described()}).encode()
    try:
        code = compile(asked["code"], asked["source"], "exec", dont_inherit=True)
    except MemoryError:
        return _problem("script_memory", None, "The script is too large to compile.", None)
    except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return _problem("script_syntax", type(error).__name__, message, getattr(error, "lineno", None))
    return _run(code, asked["params"], asked["output"])


def _run(code: types.CodeType, params: dict[str, Any], output: int) -> bytes:
    result: dict[str, Any] = {}
    # Its own module, so that classes, dataclasses and annotations find the names of the script.
    module = types.ModuleType("script")
    sys.modules["script"] = module
    namespace = module.__dict__
    namespace.update(params=params, result=result, __builtins__=names.BUILTINS)
    try:
        exec(code, namespace)  # noqa: S102 - this process exists to run the script
    except BaseException as error:
        which = "script_memory" if isinstance(error, MemoryError) else "script_error"
        kind, message, line = type(error).__name__, _message(error), _line(error, code.co_filename)
    else:
        if namespace.get("result") is not result:
            return _invalid(
                "The script assigned another value to `result`. Fill it instead: result['name'] = ... or result.update(...)."
            )
        return _packed(result, output)
    namespace.clear()
    return _problem(which, kind, message, line)


def _packed(result: dict[str, Any], output: int) -> bytes:
    try:
        text = _encode(result).encode()
    except UnicodeEncodeError:
        return _invalid("The result holds half of a surrogate pair, which is not text.")
    except (TypeError, ValueError, RecursionError) as error:
        return _invalid(f"The result is not JSON: {error}. Use dicts, lists, strings, numbers, booleans and None.")
    if len(text) > output:
        return _invalid(f"The result takes {len(text)} bytes as JSON; the limit is {output}.")
    return b'{"result":%b}' % text


def _invalid(message: str) -> bytes:
    return _problem("script_result_invalid", None, message, None)


def _problem(code: str, kind: str | None, message: str, line: int | None) -> bytes:
    text = message[:_MESSAGE_LIMIT].encode(errors="replace").decode()
    return json.dumps({"problem": code, "type": kind, "message": text, "line": line}).encode()


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _line(error: BaseException, source: str) -> int | None:
    """Return the innermost line of the script in the error's traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
