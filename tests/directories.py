"""Write the file that places namespaces on stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def write_directory(path: Path, namespaces: Mapping[str, str], store: str | None = None) -> None:
    """Write the file in one step, as an operator would replace it."""
    lines = [] if store is None else [f"store = {json.dumps(store)}"]
    lines += ["[namespaces]", *(f"{json.dumps(name)} = {json.dumps(url)}" for name, url in namespaces.items())]
    temporary = path.with_suffix(".new")
    temporary.write_text("\n".join(lines) + "\n", "utf-8")
    temporary.replace(path)
