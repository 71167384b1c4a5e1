"""Wheels carry the dashboard's front-end libraries, which are not in the repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AssetsHook(BuildHookInterface):
    """Fetches them before a wheel is built; an editable install leaves that to `make`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the builder."""
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root)))
        from build_tools.assets import fetch

        fetch()
