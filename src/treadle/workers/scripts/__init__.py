"""Script blocks: Python code in AFL sources, run in separate processes (D58).

async with ScriptRunner() as scripts:
    outputs = await scripts.run("result['n'] = len(params['words'])", {"words": ["sun", "moon"]})
"""

from treadle.workers.scripts.runner import (
    ScriptError,
    ScriptKilled,
    ScriptLimits,
    ScriptMemory,
    ScriptResultInvalid,
    ScriptRunner,
    ScriptSyntax,
    ScriptTimeout,
    ScriptUnavailable,
)

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
