"""A real browser for tests: the machine's chromium, installed from Debian's packages where that can be done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from treadle.settings import child_environment

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The browser of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@cache
def get() -> tuple[str | None, str]:
    """The browser, and why there is none: what was tried to get one. Processes that ask at once wait for each other."""
    if found := find():
        return found, ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None, "no chromium on this machine, and only root can install it (apt-get install chromium)"
    with (Path(tempfile.gettempdir()) / "treadle-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := find():
            return found, ""
        env = child_environment(DEBIAN_FRONTEND="noninteractive")
        for command in (["apt-get", "install", "-y", "-q", "chromium"], ["apt-get", "update", "-q"]):
            tried = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
            if found := find():
                return found, ""
        tried = subprocess.run(["apt-get", "install", "-y", "-q", "chromium"], capture_output=True, text=True, env=env, check=False)
        return find(), f"chromium could not be installed: {tried.stderr.strip()[-200:]}"
