"""A handler that changes code with a local command as an objective requests; the gate runs the tests of the result.

Each objective has a copy of `project/` of its own, below `work/`. The command here is a small Python script; anything that
reads a prompt and changes files does as well.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

from treadle import Context, Engine, NonRetryable

HERE = Path(__file__).parent

engine = Engine()


@engine.handler("patch.write", retry=1)
async def write_patch(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Run the command in the objective's own copy of the project; its output goes into the notes."""
    objective = payload["objective"]
    folder = HERE / "work" / objective["objective_id"]
    if not folder.exists():
        await asyncio.to_thread(shutil.copytree, HERE / "project", folder)
    ctx.progress(0.1, "writing the patch")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "write_patch.py"),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(payload["prompt"].encode())
    if process.returncode:
        raise NonRetryable(f"write_patch.py ended with {process.returncode}: {said.decode()[-500:]}", "command_failed")
    return {
        "title": f"Patch for {objective['title']}",
        "metadata": {"folder": str(folder)},
        "content": {"file": "greeting.py", "code": (folder / "greeting.py").read_text()},
        "notes": said.decode().splitlines(),
    }
