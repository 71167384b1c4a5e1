"""Script blocks: Python code in AFL sources, run in separate processes (D58).

async with ScriptRunner() as scripts:
    outputs = await scripts.run("result['n'] = len(params['words'])", {"words": ["sun", "moon"]})
"""

from treadle.workers.scripts.errors import (
    ScriptError,
    ScriptKilled,
    ScriptMemory,
    ScriptResultInvalid,
    ScriptSyntax,
    ScriptTimeout,
    ScriptUnavailable,
)
from treadle.workers.scripts.limits import ScriptLimits
from treadle.workers.scripts.runner import ScriptRunner

__all__ = [
    "ScriptError",
    "ScriptKilled",
    "ScriptLimits",
    "ScriptMemory",
    "ScriptResultInvalid",
    "ScriptRunner",
    "ScriptSyntax",
    "ScriptTimeout",
    "ScriptUnavailable",
]
