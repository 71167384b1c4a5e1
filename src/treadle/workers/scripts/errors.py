"""Errors of scripts.

ScriptError                 the script raised
├── ScriptSyntax            it is not valid Python
├── ScriptTimeout           it exceeded its limit of wall-clock or CPU time
├── ScriptMemory            it exceeded its memory limit
├── ScriptKilled            its process ended without a result
├── ScriptResultInvalid     its `result` is not a JSON object, or is too large
└── ScriptUnavailable       no process could be started on this machine; a later attempt may succeed
"""

from __future__ import annotations

from treadle.model.errors import TreadleError


class ScriptError(TreadleError):
    """A script failed: `message` is the error, `type` the exception's name, `line` the line in the AFL source."""

    code = "script_error"

    def __init__(self, message: str, *, source: str, line: int | None = None, type: str | None = None) -> None:  # noqa: A002
        place = source if line is None else f"{source}, line {line}"
        text = ": ".join(part for part in (type, message) if part)
        super().__init__(f"{place}: {text}")
        self.message, self.source, self.line, self.type = message, source, line, type


class ScriptSyntax(ScriptError):
    code = "script_syntax"


class ScriptTimeout(ScriptError):
    code = "script_timeout"


class ScriptMemory(ScriptError):
    code = "script_memory"


class ScriptKilled(ScriptError):
    code = "script_killed"


class ScriptResultInvalid(ScriptError):
    code = "script_result_invalid"


class ScriptUnavailable(ScriptError):
    code = "script_unavailable"
