"""Builds of the sdist and the wheel: front-end libraries, pages for `/llms.txt`, the demo, a README whose links work anywhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"""(\]\(|src="|srcset=")(?!https?:|#|/)([^)"]+)""")


class AssetsHook(BuildHookInterface):
    """Adds the libraries, which are not in the repository, and to a wheel pages and the demo; an editable install has these."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the builder."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        from build_tools.assets import fetch, up_to_date

        _ = up_to_date() or fetch()
        if self.target_name == "wheel":
            for path in root.glob("examples/demo/*.*"):
                build_data["force_include"][str(path)] = f"treadle/examples/demo/{path.name}"
            for page in root.glob("docs/*/**/*.md"):
                if (name := page.relative_to(root).as_posix()).split("/")[1] != "adr":
                    build_data["force_include"][str(page)] = f"treadle/{name}"


class ReadmeHook(MetadataHookInterface):
    """Turns the README's links into links to this version in the repository, because an index shows it without its files."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called for the metadata of both distributions."""
        root = Path(self.root)
        version = re.search(r'VERSION = "([^"]+)"', (root / "src/treadle/version.py").read_text("utf-8"))
        places = {"](": "blob", 'src="': "raw", 'srcset="': "raw"}
        base = f"{metadata['urls']['Repository']}/{{}}/v{version[1] if version else 'main'}/"
        text = _RELATIVE.sub(
            lambda found: found[1] + base.format(places[found[1]]) + found[2], (root / "README.md").read_text("utf-8")
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
