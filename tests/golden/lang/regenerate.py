"""Rewrites the golden JSON from the golden sources: `python tests/golden/lang/regenerate.py`, then review the diff.

The files are what runs in flight are pinned to. A changed id or a lost key breaks them, so a diff here is a decision.
"""

from __future__ import annotations

import json
from pathlib import Path

from treadle.lang import compile_sources

HERE = Path(__file__).parent


def golden(source: Path) -> str:
    """The JSON text that belongs to a golden source."""
    compiled = compile_sources([(source.name, source.read_text(encoding="utf-8"))])
    assert compiled.ok, compiled.render()
    return json.dumps({"digest": compiled.digest, "program": compiled.program}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.afl")):
        path.with_suffix(".json").write_text(golden(path), encoding="utf-8")
        print(path.with_suffix(".json"))
