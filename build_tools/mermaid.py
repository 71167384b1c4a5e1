"""Fetch Mermaid from npm, so that the site draws its diagrams without a script from another host."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from build_tools.assets import MODULES, get_npm

PACKAGE = "@mermaid-js/tiny@11.17.2"
_INSIDE = "package/dist/mermaid.tiny.js"


def fetch() -> Path | None:
    """The script, from the cache or from npm; None if there is no npm or it fails: diagrams then stay text."""
    place = MODULES / ".cache" / f"mermaid-{PACKAGE.rpartition('@')[2]}.js"
    if place.is_file():
        return place
    npm = get_npm()
    with TemporaryDirectory() as folder:
        if npm is None or subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, capture_output=True).returncode:
            return None
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            inside = archive.extractfile(_INSIDE)
            assert inside is not None
            script = inside.read()
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(".new")
    fresh.write_bytes(script)
    fresh.replace(place)
    return place
