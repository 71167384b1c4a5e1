"""Wheels carry the dashboard's front-end libraries, which are not in the repository, and the documentation for `/llms.txt`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AssetsHook(BuildHookInterface):
    """Adds them to a wheel; an editable install leaves the libraries to `make` and reads the documentation in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the builder."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root)))
        from build_tools.assets import fetch

        fetch()
        for page in sorted((Path(self.root) / "docs").rglob("*/*.md")):
            place = page.relative_to(self.root)
            if place.parts[1] not in ("adr", "snippets"):
                build_data["force_include"][str(page)] = f"treadle/{place.as_posix()}"
