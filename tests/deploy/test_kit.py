"""The image, the compose file and the systemd units: valid, and agreeing with the program about time, ports and versions."""

from __future__ import annotations

import configparser
import fnmatch
import importlib.resources
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from treadle.engine.worker_host import CLAIM_WAIT
from treadle.settings import Settings, variable_of
from treadle.version import VERSION

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "container/Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MAX_EXPOSURE = 20
"""Tenths of the points of `systemd-analyze security`: 10 is a service without any confinement."""
VARIABLES = {variable_of(name) for name in Settings.__dataclass_fields__}


def grace_of(words: list[str]) -> float:
    return float(words[words.index("--grace") + 1])


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# --- versions and settings ---


def test_versions_are_those_of_the_package():
    chart = yaml.safe_load((DEPLOY / "helm/treadle/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {VERSION}
    assert f"ARG VERSION={VERSION}\n" in CONTAINERFILE
    assert COMPOSE["services"]["worker"]["image"] == f"${{TREADLE_IMAGE:-localhost/treadle:{VERSION}}}"


@pytest.mark.parametrize("path", [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()], ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path: Path):
    known = VARIABLES | {f"{name}_FILE" for name in VARIABLES} | {"TREADLE_TOKEN"}
    known |= {
        "TREADLE_IMAGE",
        "TREADLE_PORT",
        "TREADLE_APP",
        "TREADLE_WORKER_OPTIONS",
        "TREADLE_SERVER_OPTIONS",
    }  # of the files themselves
    assert set(re.findall(r"\bTREADLE_[A-Z_]+[A-Z]\b", path.read_text())) <= known


# --- the image ---


def steps() -> list[tuple[str, str]]:
    """Instructions with their arguments."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.M).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def test_the_image_runs_the_program_as_nobody_and_can_be_stopped_and_probed():
    last = steps()[[number for number, (word, _) in enumerate(steps()) if word == "FROM"][-1] :]
    made = dict(last)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", made["USER"]), "a number, for runAsNonRoot"
    assert made["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(made["ENTRYPOINT"]) == ["treadle"]
    assert "healthcheck.py" in made["HEALTHCHECK"]
    assert [rest for word, rest in last if word == "COPY"] == ["--from=install /opt/treadle /opt/treadle"], "no sources, no tools"
    assert not [word for word, _ in last if word == "RUN"]


def test_the_build_context_contains_every_required_file():
    patterns = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()
    kept = [line[1:] for line in patterns if line.startswith("!")]
    assert patterns[0] == "*", "nothing enters that is not named"
    assert all((ROOT / each).exists() for each in kept)
    needed = [
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "THIRD_PARTY_LICENSES.txt",
        "package-lock.json",
        "src/treadle/__init__.py",
    ]
    needed += ["build_tools/assets.py", "build_tools/codemirror.js", "editors/codemirror/afl.js", "docs/reference/http.md"]
    needed += [
        part for word, rest in steps() if word == "COPY" and "--from" not in rest for part in rest.split()[:-1] if part != "."
    ]
    for path in needed:
        assert (ROOT / path).exists(), path
        assert any(path == each or path.startswith(f"{each}/") for each in kept), path
    dropped = [line for line in patterns[1:] if not line.startswith("!")]
    assert any(fnmatch.fnmatch("src/treadle/interfaces/web/static/vendor", line) for line in dropped), (
        "libraries are fetched, not copied"
    )


# --- compose ---


def test_the_compose_file_follows_the_specification():
    schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.Draft7Validator(json.loads(schemas.read_text("utf-8"))).validate(COMPOSE)


def test_services_wait_for_the_migration_and_have_the_time_to_drain():
    services = COMPOSE["services"]
    assert services["migrate"]["command"][:2] == ["store", "migrate"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("worker", "server"):
        service = services[name]
        assert service["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert seconds(service["stop_grace_period"]) >= grace_of(service["command"]) + CLAIM_WAIT
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert services["worker"]["deploy"]["replicas"] == 2
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))


def test_secrets_are_files_only():
    for service in COMPOSE["services"].values():
        for name, value in service["environment"].items():
            assert not re.search(r"PASSWORD$|SECRET$|_STORE$|TOKEN$", name), name
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])


def test_secrets_are_made_once_and_agree(tmp_path: Path):
    script = shutil.copy(DEPLOY / "compose/make-secrets.sh", tmp_path)
    subprocess.run([script], check=True)
    password = (tmp_path / "secrets/postgres_password").read_text()
    assert re.fullmatch("[0-9a-f]{48}", password)
    assert (tmp_path / "secrets/store_url").read_text() == f"postgresql://treadle:{password}@postgres:5432/treadle"
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert subprocess.run([script], capture_output=True, check=False).returncode != 0, "a second call changes nothing"
    assert (tmp_path / "secrets/postgres_password").read_text() == password


# --- systemd ---


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd")
def test_systemd_accepts_the_units_and_finds_them_confined(tmp_path: Path):
    paths = []
    for unit in UNITS:
        name = unit.name.replace("@.", "@default.")
        path = tmp_path / name
        path.write_text(unit.read_text().replace("/opt/treadle/bin/treadle", shutil.which("true") or ""))
        paths.append(str(path))
    verified = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    for path in paths:
        security = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", path]
        found = subprocess.run(security, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_stops_the_program_gracefully(unit: Path):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    service = parser["Service"]
    if service["Type"] == "oneshot":
        assert service["ExecStart"].endswith("store migrate --wait 60")
        return
    assert service["Type"] == "exec"
    assert service["KillMode"] == "mixed", "SIGTERM to helper processes would end work that may finish"
    assert float(service["TimeoutStopSec"]) >= grace_of(service["ExecStart"].split()) + CLAIM_WAIT
    assert service["Restart"] == "always"
