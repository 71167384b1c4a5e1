"""A checkout in which an agent works: paths stay inside, commands are on a list, and each has a time limit.

The limits keep a confused model in its folder. They do not contain malicious code: tests execute what the model wrote, with the
rights of the worker. Run the worker in a container without a network if the model or the repository is not trusted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ALLOWED = (("git", "diff"), ("git", "status"), ("grep", "-rn"), ("ls",), ("python", "-m", "unittest"))
"""The beginnings of the commands that an agent may run."""
TESTS = ("python", "-m", "unittest")
SECONDS = 60.0
MAX_TEXT = 8000


class Refused(Exception):
    """The agent tried something that it may not do; it receives the message."""


class Sandbox:
    """A clone of the repository `origin`, with a branch for one issue."""

    def __init__(self, origin: Path, folder: Path, branch: str) -> None:
        self.origin, self.folder, self.branch = origin.resolve(), folder.resolve(), branch

    def __repr__(self) -> str:
        return self.branch

    def ensure(self, writes: list[tuple[str, str]]) -> None:
        """Create the checkout with these files, unless it exists: the worker that made it may have been another machine."""
        if (self.folder / ".git").exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        half = self.folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        self._git("clone", "--quiet", str(self.origin), str(half), inside=self.origin.parent)
        self._git("switch", "--quiet", "--force-create", self.branch, inside=half)
        half.rename(self.folder)
        for path, content in writes:
            self.write(path, content)

    def inside(self, path: str) -> Path:
        """Return the file of the checkout, or raise `Refused`; links are followed first."""
        try:
            found = (self.folder / path).resolve()
        except (OSError, ValueError) as error:
            raise Refused(f"{path} is not a path: {type(error).__name__}") from None
        if not found.is_relative_to(self.folder) or ".git" in found.relative_to(self.folder).parts:
            raise Refused(f"{path} is outside of the checkout")
        return found

    def read(self, path: str) -> str:
        """Return the text of a file."""
        try:
            return self.inside(path).read_text()[:MAX_TEXT]
        except (OSError, ValueError) as error:
            raise Refused(f"{path} cannot be read: {type(error).__name__}") from None

    def write(self, path: str, content: str) -> str:
        """Replace a file."""
        file = self.inside(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        except (OSError, ValueError) as error:
            raise Refused(f"{path} cannot be written: {type(error).__name__}") from None
        return f"{path} has {len(content.splitlines())} lines now"

    def run(self, command: str) -> tuple[int, str]:
        """Run an allowed command; return its exit code and its output."""
        words = tuple(shlex.split(command))
        if not any(words[: len(allowed)] == allowed for allowed in ALLOWED):
            raise Refused(f"{command!r} is not allowed; allowed are: {', '.join(' '.join(each) for each in ALLOWED)}")
        for word in words[1:]:
            if word.startswith("-") and ("/" in word or word.startswith(("--output", "--no-index", "-o"))):
                raise Refused(f"the option {word} is not allowed")
            if not word.startswith("-"):
                self.inside(word)
        return self._execute(words)

    def test(self) -> tuple[bool, str]:
        """Run the tests; return whether they pass, and their output."""
        code, output = self._execute(TESTS)
        return code == 0, output

    def publish(self, title: str) -> str:
        """Commit everything and push the branch; return the patch. Repeating it changes nothing."""
        self._git("add", "--all")
        if self._git("status", "--porcelain"):
            self._git("commit", "--quiet", "--message", title)
        self._git("push", "--quiet", "--force", "origin", self.branch)
        return self._git("diff", "origin/HEAD", self.branch)

    def _execute(self, words: tuple[str, ...]) -> tuple[int, str]:
        if words[0] == "python":
            words = (sys.executable, "-B", *words[1:])
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=_environment(self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 1, f"stopped after {SECONDS:g} s"
        return process.returncode, output[-MAX_TEXT:]

    def _git(self, *words: str, inside: Path | None = None) -> str:
        folder = inside or self.folder
        done = subprocess.run(("git", *words), cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"git {words[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout


def create_origin(origin: Path, template: Path) -> None:
    """Create the bare repository of the example from a folder, unless it exists."""
    if origin.exists():
        return
    half = origin.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(template, half, ignore=shutil.ignore_patterns("__pycache__"))
    first = Sandbox(half, half, "main")
    for words in (("init", "--quiet", "--initial-branch=main"), ("add", "--all"), ("commit", "--quiet", "--message", "Start")):
        first._git(*words)
    first._git("clone", "--quiet", "--bare", ".", str(origin.resolve()))
    shutil.rmtree(half)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of commands: no keys, no settings of the user."""
    named = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _AGENT.items()}
    path = os.environ.get("PATH", os.defpath)  # noqa: TID251
    return {"PATH": path, "HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **named}


_AGENT = {"NAME": "coding agent", "EMAIL": "agent@example.org"}
