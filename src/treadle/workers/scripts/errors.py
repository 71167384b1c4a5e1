"""Why a script gave no result.

ScriptError                 the script raised
├── ScriptSyntax            it is not Python
├── ScriptTimeout           its time was up, on the clock or on the processor
├── ScriptMemory            it wanted more memory than it may have
├── ScriptKilled            its process ended without an answer
├── ScriptResultInvalid     what it left in `result` is not a JSON object, or is too large
└── ScriptUnavailable       no process could be started for it: the machine's fault, so trying later may help
"""

from __future__ import annotations

from treadle.model.errors import TreadleError


class ScriptError(TreadleError):
    """A script failed: `message` is what went wrong, `type` the exception's name, `line` the line in the AFL source."""

    code = "script_error"

    def __init__(self, message: str, *, source: str, line: int | None = None, type: str | None = None) -> None:  # noqa: A002
        place = source if line is None else f"{source}, line {line}"
        what = ": ".join(part for part in (type, message) if part)
        super().__init__(f"{place}: {what}")
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
