"""The examples with agents do what their READMEs say, with a scripted model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.commands import Treadle
from tests.engines import make_engine
from tests.limits import BOUND

from treadle import RunFailed
from treadle.engine import use_store
from treadle.settings import Settings
from treadle.testing.llm import ModelServer, text

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, module: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{example}_{module}", EXAMPLES / example / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


async def approve(engine: Any) -> Any:
    async with asyncio.timeout(BOUND):
        while not (pending := (await engine.approvals.list()).approvals):  # noqa: ASYNC110 - the store changes
            await asyncio.sleep(0.01)
    await engine.approvals.decide(pending[0].id, "approve", actor="ann")
    return pending[0]


async def test_the_langgraph_agent_publishes_after_an_approval() -> None:
    agent = load("langgraph_agent", "agent")
    use_store(agent.engine, "memory://", Settings())
    async with agent.engine, agent.engine.worker():
        run = await agent.engine.start(agent.research, {"topic": "looms"})
        asked = await approve(agent.engine)
        assert asked.title == "Publish this article?"
        result = await run.result(timeout=BOUND)
        assert (len(result["notes"]), result["article"], result["published"]) == (3, asked.context["value"]["article"], True)
        said = [entry.value["node"] async for entry in agent.engine.stream(run.id, "messages")]
        assert sorted(said) == ["explain", "explain", "explain", "plan", "write"]
        assert len(await agent.engine.kernel.store.usage.list_requests(run.id)) == 5


# --- the coding agent ---


@pytest.fixture
def coder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The modules of the example, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "coding_agent"))
    return load("coding_agent", "agent")


async def solved(treadle: Treadle, server: ModelServer, *crashes: str) -> Any:
    """Let the issue arrive as the README says, killing the worker at each of these points; return the engine and the run."""
    engine = make_engine(f"sqlite:///{treadle.folder / 'treadle.db'}")
    (treadle.folder / "examples").symlink_to(EXAMPLES)
    (treadle.folder / "issues").mkdir()
    lines = re.findall(r"^    treadle (watchers.*)$", (EXAMPLES / "coding_agent" / "README.md").read_text(), re.M)
    assert treadle(*shlex.split(lines[0]), "--settle", "0s").code == 0
    (treadle.folder / "issues" / "7.json").write_text((EXAMPLES / "coding_agent" / "issue-7.json").read_text())
    command = ("worker", "--handlers", "examples/coding_agent/agent.py")
    async with engine:
        approved = False
        for point in (*crashes, ""):
            crash = {"TREADLE_CRASH_AT": point} if point else {}
            with treadle.started(*command, ANTHROPIC_BASE_URL=server.url, **crash) as worker:
                if not approved:
                    asked = await approve(engine)
                    assert asked.context["plan"].startswith("1. Collapse")
                    approved = True
                if point:
                    await asyncio.to_thread(worker.ended)
                    servers = await engine.kernel.store.servers.list_all()
                    await engine.kernel.store.tasks.expire_leases_of([each.id for each in servers])
                else:
                    (run,) = await engine.kernel.run_reads.list_runs(workflow="coding.Fix")
                    result = await engine.run_result(run.id, timeout=BOUND)
        return run.id, result, [each.row.name.partition("#")[0] for each in await engine.kernel.run_reads.list_steps(run.id)]


@pytest.mark.all_cases  # the same promise: tests/crash/test_agents.py
async def test_the_coding_agent_is_killed_and_opens_one_pull_request(coder: Any, treadle: Treadle) -> None:
    with ModelServer() as server:
        coder.add_script(server)
        _, result, steps = await solved(treadle, server, "function.after_commit:8")
        assert server.repeated() == {}
        assert len(server.requests) == 6
    assert (result["branch"], result["red"], result["tokens"]) == ("agent/issue-7", 1, 720)
    assert steps == [
        *("read_issue", "plan", "approval", "model", "read_file", "read_file", "model", "write_file", "model", "tests"),
        *("model", "write_file", "run", "model", "tests", "pull_request"),
    ]
    text = (treadle.folder / result["url"]).read_text()
    assert "Fix #7" in text
    assert "joins the words" in text
    patch = (treadle.folder / result["url"]).with_suffix(".patch").read_text()
    assert '+    return "-".join(title.lower().split())' in patch
    origin = treadle.folder / "coding" / "project.git"
    show = ["git", "show", "agent/issue-7:slug.py"]
    shown = await asyncio.to_thread(subprocess.run, show, cwd=origin, capture_output=True, text=True, check=True)
    assert "split()" in shown.stdout


async def run_in_memory(coder: Any, server: ModelServer, **payload: Any) -> Any:
    use_store(coder.engine, "memory://", Settings(anthropic_base_url=server.url))
    issue = {"number": 7, "title": "t", "body": "b"}
    async with coder.engine as engine, engine.worker():
        run = await engine.start_function("coding.Fix", {"issue": issue, **payload})
        await approve(engine)
        return await engine.run_result(run, timeout=BOUND)


async def test_the_coding_agent_stops_at_its_token_budget_and_at_red_tests(coder: Any) -> None:
    with ModelServer() as server:
        coder.add_script(server)
        with pytest.raises(RunFailed, match="budget of 300 tokens"):
            await run_in_memory(coder, server, tokens=300)
        assert len(server.requests) == 3
    with ModelServer() as server:
        server.conversation(text("plan"), key="Plan")
        server.conversation(*[text("done")] * 9, key="Solve")
        with pytest.raises(RunFailed, match="still fail after 4 attempts"):
            await run_in_memory(coder, server)


def test_the_sandbox_refuses_paths_and_commands_that_escape_it(coder: Any, tmp_path: Path) -> None:
    coder.create_origin(tmp_path / "o.git", EXAMPLES / "coding_agent" / "project")
    sandbox = coder.Sandbox(tmp_path / "o.git", tmp_path / "box", "b")
    sandbox.ensure([("new/file.txt", "hello")])
    (sandbox.folder / "link").symlink_to("/etc")
    secret = tmp_path / "secret"
    secret.write_text("s")
    for path in ("../secret", str(secret), "/etc/passwd", "link/passwd", ".git/config", "new/../../secret"):
        with pytest.raises(coder.Refused, match="outside"):
            sandbox.read(path)
        with pytest.raises(coder.Refused, match="outside"):
            sandbox.write(path, "x")
    for path in (".", "slug.py/x", "x" * 300, "a\0b"):
        assert coder.use_tool(sandbox, [], "write_file", {"path": path, "content": "x"}).startswith("refused")
        assert coder.use_tool(sandbox, [], "read_file", {"path": path}).startswith("refused")
    commands = ("rm -rf .", "curl http://x", "git push", "git -c a=b diff", "grep -rn x ..", "grep -rn -f/etc/passwd .", "ls /", "")
    for command in (*commands, "git diff --no-index a b", "git diff --output=x", "python -c 1", "git diff; ls", "ls link"):
        with pytest.raises(coder.Refused):
            sandbox.run(command)
    assert sandbox.run("grep -rn hello new") == (0, "new/file.txt:1:hello\n")
    assert secret.read_text() == "s"
    assert coder.use_tool(sandbox, [], "run", {"command": "rm x"}).startswith("refused: 'rm x' is not allowed")


def test_with_a_token_the_pull_request_is_opened_at_github_once(
    coder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []

    def github(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.url.path == "/repos/ann/site/pulls"
        if request.method == "POST":
            opened.append({**json.loads(request.content), "html_url": f"https://github.test/{len(opened) + 1}"})
            return httpx.Response(201, json=opened[-1])
        assert request.url.params["head"] == "ann:agent/issue-7"
        return httpx.Response(200, json=opened)

    client = httpx.Client
    monkeypatch.setattr(coder.httpx, "Client", lambda **options: client(transport=httpx.MockTransport(github), **options))
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    coder.create_origin(tmp_path / "o.git", EXAMPLES / "coding_agent" / "project")
    sandbox = coder.Sandbox(tmp_path / "o.git", tmp_path / "box", "agent/issue-7")
    issue = {"number": 7, "title": "t", "repository": "ann/site"}
    for _ in range(2):  # the second time as after a crash, with the checkout gone
        made = coder.open_pull_request(sandbox, [("slug.py", "x = 1\n")], issue, "text")
        assert made == {"branch": "agent/issue-7", "url": "https://github.test/1"}
        shutil.rmtree(sandbox.folder)
    assert [(each["head"], each["title"]) for each in opened] == [("agent/issue-7", "Fix #7: t")]
