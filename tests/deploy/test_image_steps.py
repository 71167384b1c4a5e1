"""The image's build without a daemon: its steps run in a folder instead of a root file system, on the files of its context."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.test_kit import ROOT, steps

from treadle.version import VERSION

pytestmark = pytest.mark.soak
PLACES = ("/src", "/build", "/wheels", "/opt/treadle")
"""Absolute paths of the steps, which are below the temporary root here."""
EXTRAS = "postgres,http,metrics"


def copy_context(target: Path) -> None:
    """Copy the committed and new files that .containerignore lets into the build."""
    patterns = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line[1:] for line in patterns if line.startswith("!")]
    dropped = [line for line in patterns[1:] if not line.startswith("!")]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        inside = any(name == each or name.startswith(f"{each}/") for each in kept)
        if inside and not any(fnmatch.fnmatch(name, line) for line in dropped) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Image:
    """A root folder, and the steps of the stages in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root
        copy_context(root / "context")

    def below(self, command: str) -> str:
        """Return the command with its absolute paths below the root."""
        return re.sub(rf"(?<=[ (])(?={'|'.join(PLACES)})", str(self.root), command)

    def step(self, word: str, rest: str) -> None:
        if word == "WORKDIR" and rest in PLACES:
            self.folder = self.root / rest[1:]
            self.folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and not rest.startswith("--from"):
            source, target = rest.split()
            place = self.folder if target == "." else self.root / target[1:]
            if source == ".":
                shutil.copytree(self.root / "context", place, dirs_exist_ok=True)
            else:
                shutil.copy2(self.root / "context" / source, place)
        elif word == "RUN":
            command = f"unset PYTHONPATH; export EXTRAS={EXTRAS} PATH={Path(sys.executable).parent}:$PATH; {self.below(f' {rest}')}"
            subprocess.run(["sh", "-ec", command], cwd=self.folder, check=True)


def test_the_steps_of_the_image_give_an_installation_that_runs_without_sources_and_pip(tmp_path: Path) -> None:
    image = Image(tmp_path)
    for word, rest in steps():
        image.step(word, rest)
    installed = tmp_path / "opt/treadle"
    assert (installed / "healthcheck.py").is_file()
    assert not (installed / "bin/pip").exists()
    environment = {"PATH": f"{installed}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    version = subprocess.run(
        [installed / "bin/treadle", "--version"], stdout=subprocess.PIPE, text=True, env=environment, check=True
    )
    assert version.stdout.strip() == f"treadle {VERSION}"
    [vendor] = installed.glob("lib/python*/site-packages/treadle/interfaces/web/static/vendor")
    assert (vendor / "idiomorph.js").is_file()
    url = f"sqlite:///{tmp_path / 'image.db'}"
    subprocess.run([installed / "bin/treadle", "--store", url, "store", "migrate"], env=environment, check=True)
