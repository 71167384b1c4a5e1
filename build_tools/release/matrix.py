"""Runs the smoke test of a wheel on every Python of this machine that Treadle supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
SMOKE = Path(__file__).with_name("smoke.py")


def pythons() -> list[str]:
    """Return the interpreters in TREADLE_PYTHONS (paths, separated by colons), else python3.11 to python3.14 on the PATH."""
    if given := os.environ.get("TREADLE_PYTHONS"):
        return given.split(":")
    candidates = [shutil.which(f"python{version}") for version in SUPPORTED]
    return [python for python in candidates if python and _starts(python)]


def _starts(python: str) -> bool:
    """Return False for a shim of pyenv without an interpreter behind it."""
    return subprocess.run([python, "--version"], check=False, capture_output=True).returncode == 0


def problems(wheel: Path) -> list[str]:
    """Try the wheel on each; return the interpreters on which a step failed."""
    found = pythons()
    if not found:
        return [f"There is no Python of {', '.join(SUPPORTED)} on the PATH: set TREADLE_PYTHONS to the paths of interpreters."]
    return [f"The smoke test failed on {each}." for each in found if subprocess.run([each, SMOKE, wheel], check=False).returncode]
