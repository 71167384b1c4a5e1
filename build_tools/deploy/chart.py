"""Render the Helm chart for every set of values in tests/deploy/values.

Rendering needs Go with Sprig, so the results are kept in tests/deploy/rendered, with a digest of what they were made from.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/treadle"
SETS = ROOT / "tests/deploy/values"
RENDERED = ROOT / "tests/deploy/rendered"
DIGEST = RENDERED / "digest"
RENDERER = Path(__file__).with_name("render.go")
LIBRARIES = Path("/usr/share/gocode")
"""Packages of Debian's Go libraries."""


class CannotRender(Exception):
    """A template refused the values, with its message."""


def digest() -> str:
    """A fingerprint of everything that the rendered files are made from."""
    found = hashlib.sha256()
    paths = [*(path for path in CHART.rglob("*") if path.is_file() and path.suffix != ".md"), *SETS.glob("*.yaml"), RENDERER]
    for path in sorted(paths):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def merged(base: Any, over: Any) -> Any:
    """Values with others over them, as Helm merges them: by key in maps, whole otherwise."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return base | {name: merged(base.get(name), value) for name, value in over.items()}


def values_of(name: str) -> dict[str, Any]:
    """The chart's values with those of a set over them."""
    made: dict[str, Any] = merged(read(CHART / "values.yaml"), read(SETS / f"{name}.yaml"))
    return made


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8")) or {}


@cache
def _renderer() -> tuple[Path, TemporaryDirectory[str]]:
    """The built program, and its folder, which lives as long as this process."""
    folder = TemporaryDirectory(prefix="treadle-render-")
    program = Path(folder.name, "render")
    environment = {
        "GO111MODULE": "off",
        "GOPATH": str(LIBRARIES),
        "GOCACHE": folder.name,
        "PATH": "/usr/local/go/bin:/usr/bin:/bin",
    }
    subprocess.run(["go", "build", "-o", program, RENDERER], env=environment, check=True)
    return program, folder


def render(values: dict[str, Any], release: str = "shop") -> dict[str, str]:
    """The rendered templates by file name; raises `CannotRender`."""
    chart = {name[0].upper() + name[1:]: value for name, value in read(CHART / "Chart.yaml").items()}
    top = {
        "Values": values,
        "Chart": chart,
        "Release": {"Name": release, "Namespace": "work", "Service": "Helm", "IsInstall": True, "IsUpgrade": False, "Revision": 1},
        "Capabilities": {"KubeVersion": {"Version": "v1.33.0"}},
    }
    files = {path.name: path.read_text("utf-8") for path in sorted((CHART / "templates").iterdir())}
    sent = json.dumps({"files": files, "top": top})
    made = subprocess.run([_renderer()[0]], input=sent, capture_output=True, text=True, check=False)
    if made.returncode:
        raise CannotRender(made.stderr)
    rendered: dict[str, str] = json.loads(made.stdout)
    return rendered


def manifests(values: dict[str, Any]) -> str:
    """All manifests of a set of values as one document stream, without notes."""
    rendered = render(values)
    texts = [
        f"# {name}\n{rendered[name].strip()}\n" for name in sorted(rendered) if name.endswith(".yaml") and rendered[name].strip()
    ]
    return "---\n".join(texts)


def write() -> None:
    """Render all sets; remove what belongs to none."""
    names = [path.stem for path in sorted(SETS.glob("*.yaml"))]
    for name in names:
        (RENDERED / f"{name}.yaml").write_text(manifests(values_of(name)), "utf-8")
    for path in RENDERED.glob("*.yaml"):
        if path.stem not in names:
            path.unlink()
    DIGEST.write_text(digest() + "\n")
