"""Try a wheel on the Python that runs this file, as a new user would: `python3.13 smoke.py WHEEL`.

Uses the standard library alone, so that it runs on a Python without Treadle, in a container or a chroot, too. Everything happens in
a temporary folder and a new virtual environment; pip fetches the dependencies, as wheels only: no compiler is needed. First the
core, then the extras.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path

EXTRAS = "http,client,mcp,lsp,goals,metrics,postgres"
WITHOUT: dict[str, list[str]] = {
    "http": ["serve"],
    "client": ["status", "--server", "http://127.0.0.1:9"],
    "mcp": ["mcp"],
    "lsp": ["lsp"],
    "postgres": ["status", "--store", "postgresql://127.0.0.1:9/none"],
    "mongodb": ["import", "mongodump", "."],
}
"""Commands that need an extra: without it they exit with code 4 and name it."""
FRAMEWORKS = ("fastapi", "django", "flask", "sqlalchemy", "pydantic-ai", "openai-agents", "langgraph")
TRY = "import treadle\ntry: import treadle.integrations.{}\nexcept treadle.TreadleError as error: print(error)"
SOURCE = """
import asyncio
from treadle import Engine

engine = Engine("sqlite:///smoke.db")

@engine.handler("double")
async def double(payload, ctx):
    return {"doubled": 2 * payload["n"]}

@engine.function("total")
async def total(payload, ctx):
    found = await ctx.gather(*(ctx.call("double", {"n": n}) for n in range(payload["below"])))
    return {"total": sum(each["doubled"] for each in found)}

async def main():
    async with engine, engine.worker():
        print(await (await engine.start("total", {"below": 5})).result())

asyncio.run(main())
"""


class Trial:
    """A virtual environment with the wheel, and an empty folder to work in."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.wheel, self.bin, self.work = wheel, folder / "venv" / "bin", folder / "work"
        self.work.mkdir()
        kept = ("PATH", "LANG", "SSL_CERT_FILE", "TMPDIR")
        self.environment = {name: value for name, value in os.environ.items() if name in kept or name.startswith("PIP_")}
        self.environment |= {"HOME": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
        venv.create(folder / "venv", with_pip=True)

    def run(self, *command: str, code: int = 0, folder: Path | None = None) -> str:
        """Run a program of the environment; returns what it prints, and raises unless it exits with the code."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=folder or self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        text = done.stdout + done.stderr
        if done.returncode != code or "Traceback" in text:
            raise AssertionError(f"{' '.join(command)} exited with {done.returncode}, not {code}:\n{text}")
        return text

    def install(self, extras: str = "") -> None:
        wanted = f"{self.wheel}[{extras}]" if extras else str(self.wheel)
        self.run("python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", wanted)
        self.run("python", "-m", "pip", "check")

    def demo(self) -> None:
        self.run("treadle", "demo")

    def version(self) -> None:
        version = self.wheel.name.split("-")[1]
        assert self.run("treadle", "--version").strip() == f"treadle {version}"
        assert json.loads(self.run("treadle", "doctor", "--json"))

    def program(self) -> None:
        (self.work / "smoke.py").write_text(SOURCE)
        assert "{'total': 20}" in self.run("python", "smoke.py")
        self.run("treadle", "store", "verify", "--store", "sqlite:///smoke.db")

    def project(self) -> None:
        self.run("treadle", "init", "project", "--template", "afl")
        folder = self.work / "project"
        self.run("treadle", "compile", "flows", folder=folder)
        assert "Hello, Ada!" in self.run("treadle", "run", "flows", "--handlers", "handlers.py", folder=folder)

    def messages(self) -> None:
        """Without an extra, a command or an import names the extra to install."""
        for extra, command in WITHOUT.items():
            text = self.run("treadle", *command, code=4)
            assert f"pip install 'treadle[{extra}]'" in text, text
        for extra in FRAMEWORKS:
            text = self.run("python", "-c", TRY.format(extra.replace("-", "_")))
            assert f"pip install 'treadle[{extra}]'" in text, text

    def pytest(self) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", "pytest")
        self.run("python", "-m", "pytest", "-q", folder=self.work / "project")

    def serve(self) -> None:
        """`treadle dev` of the new project serves the API, the documentation and the front-end files."""
        folder, pipe = self.work / "project", subprocess.PIPE
        command = [str(self.bin / "treadle"), "dev", "--port", "0"]
        with subprocess.Popen(command, cwd=folder, env=self.environment, stdout=pipe, stderr=subprocess.STDOUT, text=True) as dev:
            try:
                assert dev.stdout is not None
                url = next(found[0] for line in dev.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
                version = self.wheel.name.split("-")[1]
                assert json.loads(_get(f"{url}/health"))["version"] == version
                assert json.loads(_get(f"{url}/v1/openapi.json"))["info"]["version"] == version
                assert version in _get(f"{url}/llms.txt")
                assert len(_get(f"{url}/static/vendor/codemirror.js")) > 100_000
            finally:
                dev.terminate()
                dev.communicate(timeout=60)
        assert dev.returncode == 0, dev.returncode


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


def main(wheel: Path) -> int:
    print(f"Python {platform.python_version()} on {platform.platform()}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="treadle-smoke-") as folder:
        trial = Trial(wheel.resolve(), Path(folder))
        steps: list[tuple[str, Callable[[], None]]] = [
            ("install the core", trial.install),
            ("treadle demo", trial.demo),
            ("version, doctor", trial.version),
            ("a program with a function and tasks", trial.program),
            ("treadle init, compile, run", trial.project),
            ("messages without extras", trial.messages),
            (f"install [{EXTRAS}]", lambda: trial.install(EXTRAS)),
            ("pytest in the new project", trial.pytest),
            ("treadle dev: API, docs, front end", trial.serve),
        ]
        for name, step in steps:
            begun = time.monotonic()
            try:
                step()
            except Exception as error:
                failed += 1
                print(f"  FAILED {name}: {error or type(error)}", flush=True)
            else:
                print(f"  ok {time.monotonic() - begun:6.1f} s  {name}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
