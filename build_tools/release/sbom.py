"""The software bill of materials: what an installation of the wheel contains, in CycloneDX 1.6.

cyclonedx-bom describes the Python packages of a new environment with the wheel and the extras of a server; those that the core does
not need have the scope `optional`. The npm packages of which the wheel contains code are added from package-lock.json.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from build_tools.assets import LICENSES, ROOT
from treadle.version import VERSION

EXTRAS = "postgres,http,client,mcp,lsp,goals,metrics,otel,oauth,llm"


def write(wheel: Path, dist: Path) -> Path:
    """Write the file beside the wheel, and validate it."""
    with tempfile.TemporaryDirectory(prefix="treadle-sbom-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        _run(python, "-m", "pip", "install", "--quiet", str(wheel.resolve()))
        core = {each["name"] for each in json.loads(_run(python, "-m", "pip", "list", "--format=json"))}
        _run(python, "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[{EXTRAS}]")
        _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
        options = ["--output-reproducible", "--short-PURLs", "--sv", "1.6"]
        bom = json.loads(_run(sys.executable, "-m", "cyclonedx_py", "environment", *options, python))
    complete(bom, core, json.loads((ROOT / "package-lock.json").read_text("utf-8"))["packages"])
    path = dist / f"treadle-{VERSION}.cdx.json"
    path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    validate(path.read_text("utf-8"))
    return path


def complete(bom: dict[str, Any], core: set[str], locked: dict[str, dict[str, Any]]) -> None:
    """Make the wheel the subject, mark what only extras need, and add the npm packages."""
    root = next(each for each in bom["components"] if each["name"] == "treadle")
    components = [each for each in bom["components"] if each is not root]
    for each in components:
        each["scope"] = "required" if each["name"] in core else "optional"
    npm = [_npm(name, version, license_, locked[f"node_modules/{name}"]) for name, version, license_ in shipped()]
    edges = next(each for each in bom["dependencies"] if each["ref"] == root["bom-ref"])
    edges["dependsOn"] = sorted({*edges.get("dependsOn", []), *(each["bom-ref"] for each in npm)})
    bom["metadata"]["component"] = {
        "type": "library",
        "bom-ref": root["bom-ref"],
        "name": "treadle",
        "version": VERSION,
        "purl": f"pkg:pypi/treadle@{VERSION}",
        "licenses": root["licenses"],
    }
    bom["components"] = [*components, *npm]
    bom["dependencies"] += [{"ref": each["bom-ref"]} for each in npm]


def shipped() -> list[tuple[str, str, str]]:
    """The npm packages in the wheel: name, version, SPDX identifier of the licence."""
    return re.findall(r"^=+\n(\S+) (\S+) \(([^)]+)\)\n=+$", LICENSES.read_text("utf-8"), re.MULTILINE)


def _npm(name: str, version: str, license_: str, locked: dict[str, Any]) -> dict[str, Any]:
    if locked["version"] != version:
        raise SystemExit(f"{LICENSES.name} has {name} {version}, package-lock.json {locked['version']}: run `make assets`.")
    purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
    digest = base64.b64decode(locked["integrity"].removeprefix("sha512-")).hex()
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "required",
        "licenses": [{"license": {"id": license_}}],
        "hashes": [{"alg": "SHA-512", "content": digest}],
    }


def validate(text: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"The SBOM is not valid CycloneDX 1.6: {str(error)[:500]}")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
