"""Builds the extension for VS Code: npm fetches the tools, esbuild bundles the client, vsce writes the .vsix."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build_tools.assets import ROOT, get_npm

EDITORS = ROOT / "editors"
MODULES = EDITORS / "node_modules"
STAMP = MODULES / ".made-from"
VSIX = ROOT / "dist" / "treadle-afl.vsix"
_BUILT = ROOT / "dist" / ".treadle-afl.made-from"


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes from building at the same time."""
    VSIX.parent.mkdir(exist_ok=True)
    with (VSIX.parent / ".editors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch() -> bool:
    """Install the tools, if they changed since; False if there is no npm or it fails."""
    with _alone():
        return _fetch()


def _fetch() -> bool:
    wanted = _digest([EDITORS / "package-lock.json"])
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return True
    npm = get_npm()
    if npm is None:
        sys.stderr.write("No npm here, and none could be installed: the editors' files cannot be built.\n")
        return False
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline"]
    done = subprocess.run(command, cwd=EDITORS, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"npm could not fetch the editors' tools.\n{done.stderr}")
        return False
    STAMP.write_text(wanted)
    return True


def build() -> bool:
    """Build the extension, if its sources changed since; False if that fails."""
    with _alone():
        return _fetch() and _build()


def _build() -> bool:
    sources = sorted(path for path in (EDITORS / "vscode").rglob("*") if path.is_file() and "out" not in path.parts)
    wanted = _digest([*sources, EDITORS / "package-lock.json"])
    if VSIX.is_file() and _BUILT.is_file() and _BUILT.read_text() == wanted:
        return True
    for name, arguments in (
        ("esbuild", ["extension.js", "--bundle", "--platform=node", "--external:vscode", "--minify", "--outfile=out/extension.js"]),
        ("vsce", ["package", "--no-dependencies", "--allow-missing-repository", "--skip-license", "--out", str(VSIX)]),
    ):
        command = [str(MODULES / ".bin" / name), *arguments]
        done = subprocess.run(command, cwd=EDITORS / "vscode", capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"{name} failed.\n{done.stdout}{done.stderr}")
            return False
    _BUILT.write_text(wanted)
    return True
