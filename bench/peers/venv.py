"""The peers' own virtual environment: made once by the ordinary pip, kept in the project, made anew on demand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.processes import ROOT

FOLDER = ROOT / ".bench-peers"

REQUIREMENTS = (
    "pgqueuer>=1.6",
    "procrastinate>=3.10",
    "dbos>=3.3",
    "absurd-sdk>=0.5",
    "absurdctl>=0.5",
    "huey>=3.5",
    "persist-queue>=1.1",
    "celery[redis]>=5.7",
    "dramatiq[redis]>=2.2",
    "asyncpg>=0.30",
    "psycopg[binary,pool]>=3.2",
)
"""The measured peers and the database drivers that they need."""


def peers_python(fresh: bool = False, folder: Path = FOLDER) -> Path:
    """The Python that has the peers; what is there is used again if it has what is asked for."""
    wanted, noted = "\n".join((sys.version, *REQUIREMENTS)), folder / "installed.txt"
    python = folder / "bin" / "python"
    if not fresh and noted.exists() and noted.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing the peers into {folder.name} (once; a minute or two) ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS], check=True)
    noted.write_text(wanted)
    return python


def versions(python: Path, packages: list[str]) -> dict[str, str]:
    """Which version of each package is there."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps({p: version(p) for p in sys.argv[1:]}))"
    said = subprocess.run([str(python), "-c", code, *packages], check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = json.loads(said)
    return found
