"""Checks of the contents and the metadata of both distributions."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

from build_tools.assets import FILES, ROOT
from treadle.version import VERSION

_INFO = f"treadle-{VERSION}.dist-info"
_SERVED = [f"treadle/interfaces/web/static/vendor/{name}" for name in (*FILES, "codemirror.js")]
_FIELDS = ("License-Expression", "Project-URL", "Requires-Python")
NEEDED = (
    "afl/py.typed",
    "treadle/py.typed",
    f"{_INFO}/entry_points.txt",
    f"{_INFO}/licenses/LICENSE",
    f"{_INFO}/licenses/THIRD_PARTY_LICENSES.txt",
    *_SERVED,
)
"""Files that a wheel must contain, besides the sources and the pages of the documentation."""


def problems(sdist: Path, wheel: Path) -> list[str]:
    """Return everything that is wrong with them; empty if they can be released."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = BytesParser().parsebytes(archive.read(f"{_INFO}/METADATA"))
    pages = {f"treadle/{page.relative_to(ROOT).as_posix()}" for page in ROOT.glob("docs/*/**/*.md") if "adr" not in page.parts}
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sources = {name.removeprefix("src/") for name in listed.splitlines()}
    found = [f"{wheel.name} lacks {name}" for name in sorted({*NEEDED, *pages, *sources} - names)]
    tops = {name.partition("/")[0] for name in names} - {"treadle", "afl", _INFO}
    found += [f"{wheel.name} has {top} at its top" for top in sorted(tops)]
    found += [f"{wheel.name} contains {name}" for name in sorted(names) if name.endswith((".pyc", ".db")) or "node_modules" in name]
    found += [f"the metadata lack {field}" for field in _FIELDS if not metadata[field]]
    with tarfile.open(sdist) as packed:
        members = {name.partition("/")[2] for name in packed.getnames()}
    wanted = ("LICENSE", "CHANGELOG.md", "pyproject.toml", "hatch_build.py", *(f"src/{name}" for name in _SERVED))
    found += [f"{sdist.name} lacks {name}" for name in wanted if name not in members]
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)], capture_output=True, text=True, check=False
    )
    return found if checked.returncode == 0 else [*found, checked.stdout + checked.stderr]


def unpublishable(tag: str) -> list[str]:
    """Return the reasons why this checkout must not be published under a tag: placeholders, or no section in the changelog."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = [
        f"pyproject.toml: the URL {name} is a placeholder: {url}" for name, url in project["urls"].items() if ".example" in url
    ]
    if tag != f"v{VERSION}":
        found.append(f"The tag is {tag}, the version {VERSION}: tag v{VERSION}, or change src/treadle/version.py.")
    if f"## [{VERSION}] - " not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        found.append(f"CHANGELOG.md has no section `## [{VERSION}] - DATE`.")
    return found
