"""Builds the sdist, and the wheel from it. The same commit gives the same bytes, in whichever folder."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from build_tools.assets import ROOT, VENDOR, fetch
from treadle.version import VERSION

CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def build(dist: Path) -> tuple[Path, Path]:
    """Build both distributions of the last commit into a folder; uncommitted changes are not part of them."""
    if not fetch():
        raise SystemExit("The dashboard's libraries could not be fetched from npm: a release needs them.")
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="treadle-release-") as folder:
        source = Path(folder) / "treadle"
        _export(source)
        environment = os.environ | {
            "SOURCE_DATE_EPOCH": epoch(),
            "PIP_CONSTRAINT": str(CONSTRAINTS),
            "TZ": "UTC",
        }
        command = [sys.executable, "-m", "build", "--outdir", str(dist.resolve()), str(source)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The build failed.\n{done.stdout}{done.stderr}")
    return dist / f"treadle-{VERSION}.tar.gz", wheel_of(dist)


def epoch() -> str:
    """The time of the last commit, in seconds, which is the time of every file in the distributions."""
    return _git("log", "-1", "--format=%ct", "HEAD").decode().strip()


def wheel_of(dist: Path) -> Path:
    return dist / f"treadle-{VERSION}-py3-none-any.whl"


def write_checksums(dist: Path, files: list[Path]) -> None:
    """Write SHA256SUMS in the format of `sha256sum --check`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    (dist / "SHA256SUMS").write_text("".join(lines))
    for path in [*files, dist / "SHA256SUMS"]:
        sys.stdout.write(f"{path} ({path.stat().st_size:,} bytes)\n")


def _export(folder: Path) -> None:
    """Write the committed files and the front-end libraries of this checkout into a new folder."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")
    place = folder / VENDOR.relative_to(ROOT)
    shutil.copytree(VENDOR, place)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
