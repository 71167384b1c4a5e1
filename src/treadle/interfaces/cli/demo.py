"""`treadle demo`: the example in `examples/demo`, which a wheel has too."""

from __future__ import annotations

from pathlib import Path

import treadle
from treadle.interfaces.cli.engines import load_place
from treadle.interfaces.cli.session import CommandSession


async def demo(session: CommandSession) -> None:
    """Show the engine at work: parallel tasks, a retry, a killed worker, a repaired workflow, a sleeping function. Ten seconds.

    Runs on SQLite in a temporary folder, regardless of TREADLE_STORE; with --store, there in its own namespace.
    """
    package = Path(treadle.__file__).parent
    example = next(root / "examples/demo" for root in (package, package.parents[1]) if (root / "examples/demo").is_dir())
    await load_place(str(example / "story.py")).tell(session)
