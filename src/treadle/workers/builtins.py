"""Handlers of the engine's own kinds of task: scripts of flows, and advancing runs."""

from __future__ import annotations

from typing import Any

from treadle.kernel.run_rows import PARAM
from treadle.model.names import ADVANCE, SCRIPT
from treadle.model.outcomes import Failed, Problem
from treadle.model.values import Json
from treadle.workers.handlers import Handler, make_handler
from treadle.workers.scripts import ScriptError, ScriptRunner, ScriptUnavailable


def builtin_handlers(scripts: ScriptRunner) -> dict[str, Handler]:
    """The handlers by kind."""

    async def run_script(payload: dict[str, Any]) -> dict[str, Json] | Failed:
        """Run the code out of process; what is wrong with it is final, and its type is that of what the script raised."""
        script = payload["script"]
        params = {name.removeprefix(PARAM): value for name, value in payload.items() if name.startswith(PARAM)}
        try:
            return await scripts.run(
                script["code"], params, first_line=script.get("line", 1), source=script.get("source") or "<script>"
            )
        except ScriptUnavailable:
            raise
        except ScriptError as error:
            return Failed(Problem(error.code, str(error), error.type or type(error).__name__))

    async def take_in(_: dict[str, Any]) -> None:
        """Nothing by itself: settling the task is what advances the run."""

    return {
        SCRIPT: make_handler(SCRIPT, run_script, retry=3, concurrency=16),
        ADVANCE: make_handler(ADVANCE, take_in),
    }
