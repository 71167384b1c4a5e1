"""An issue arrives, a person approves the plan, an agent works in a sandboxed checkout, tests are the gate, and a pull request is
the outcome. A scripted model answers, unless ANTHROPIC_API_KEY is set."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
from coding_sandbox import Refused, Sandbox, create_origin
from coding_script import add_script

from treadle import Engine, FunctionContext, NonRetryable
from treadle.testing.llm import ModelServer

HOME = Path("coding")
ORIGIN = HOME / "project.git"
TOKENS = 60_000
"""The default budget of an issue, in tokens."""
MAX_TURNS, MAX_RED, MAX_OUTPUT = 30, 3, 4000

SYSTEM = "You are a careful programmer. Change as little as possible. When you are done, say in one sentence what you changed."
TOOLS = [
    {"name": name, "description": about, "input_schema": {"type": "object", "properties": given, "required": list(given)}}
    for name, about, given in (
        ("read_file", "Read a file of the checkout.", {"path": {"type": "string"}}),
        ("write_file", "Replace a file.", {"path": {"type": "string"}, "content": {"type": "string"}}),
        ("run", "Run git diff, git status, grep -rn, ls or python -m unittest.", {"command": {"type": "string"}}),
    )
]

engine = Engine()
scripted: list[ModelServer] = []


@engine.on_start
def prepare() -> None:
    """Create the repository of the example, and start the scripted model if it is needed."""
    HOME.mkdir(exist_ok=True)
    create_origin(ORIGIN, Path(__file__).parent / "project")
    settings = engine.kernel.settings
    if not settings.anthropic_api_key and not settings.anthropic_base_url:
        scripted.append(ModelServer().__enter__())
        add_script(scripted[0])


@engine.on_stop
def stop() -> None:
    """Stop the scripted model."""
    while scripted:
        scripted.pop().__exit__()


async def ask(messages: list[dict[str, Any]], most: int) -> dict[str, Any]:
    """Send one request; return the blocks of the response and the tokens that it used."""
    settings = engine.kernel.settings
    url = scripted[0].url if scripted else settings.anthropic_base_url or None
    async with anthropic.AsyncAnthropic(api_key=settings.anthropic_api_key or "none", base_url=url, max_retries=0) as client:
        answer: Any = await client.messages.create(
            model=settings.llm_model or "claude-sonnet-4-5", system=SYSTEM, tools=TOOLS, messages=messages, max_tokens=most
        )  # type: ignore[call-overload]
    kept = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
    blocks = [{key: getattr(block, key) for key in kept[block.type]} for block in answer.content if block.type in kept]
    return {"content": blocks, "tokens": answer.usage.input_tokens + answer.usage.output_tokens}


def use_tool(sandbox: Sandbox, writes: list[tuple[str, str]], name: str, given: dict[str, Any]) -> str:
    """Do what the model asks for; a refusal is an answer, too."""
    sandbox.ensure(writes)
    try:
        match name:
            case "read_file":
                return sandbox.read(given["path"])
            case "write_file":
                return sandbox.write(given["path"], given["content"])
            case "run":
                code, output = sandbox.run(given["command"])
                return f"exit code {code}\n{output}"
        return f"there is no tool {name}"
    except (Refused, KeyError, ValueError) as error:
        return f"refused: {error}"


def check(sandbox: Sandbox, writes: list[tuple[str, str]]) -> dict[str, Any]:
    """Run the tests of the project."""
    sandbox.ensure(writes)
    passed, output = sandbox.test()
    return {"passed": passed, "output": output}


def open_pull_request(sandbox: Sandbox, writes: list[tuple[str, str]], issue: dict[str, Any], text: str) -> dict[str, Any]:
    """Push the branch, and open a pull request: at GitHub with a token, else as files beside the repository."""
    sandbox.ensure(writes)
    title = f"Fix #{issue['number']}: {issue['title']}"
    patch = sandbox.publish(title)
    token, repository = os.environ.get("GITHUB_TOKEN"), issue.get("repository")  # noqa: TID251
    if token and repository:
        address = os.environ.get("GITHUB_API_URL", "https://api.github.com")  # noqa: TID251
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30) as github:
            head = f"{repository.split('/')[0]}:{sandbox.branch}"
            found = github.get(f"/repos/{repository}/pulls", params={"head": head}).raise_for_status().json()
            body = {"title": title, "head": sandbox.branch, "base": "main", "body": text}
            made = found[0] if found else github.post(f"/repos/{repository}/pulls", json=body).raise_for_status().json()
            return {"branch": sandbox.branch, "url": made["html_url"]}
    file = HOME / "pull-requests" / f"issue-{issue['number']}.md"
    file.parent.mkdir(exist_ok=True)
    file.with_suffix(".patch").write_text(patch)
    file.write_text(f"# {title}\n\n{text}\n\nBranch: {sandbox.branch}\n")
    return {"branch": sandbox.branch, "url": str(file)}


@engine.function("coding.Fix")
async def fix(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Any]:
    """Solve the issue in `payload["issue"]`, or in the file that a watcher found."""
    if "issue" in payload:
        issue = payload["issue"]
    else:
        issue = await ctx.step(lambda: json.loads(Path(payload["change"]["path"]).read_text()), name="read_issue")
    budget = payload.get("tokens", TOKENS)
    about = f"issue #{issue['number']}: {issue['title']}\n\n{issue['body']}"
    first = await ctx.step(
        ask, [{"role": "user", "content": f"Plan in a few lines how to solve {about}"}], 1000, name="plan", retry=3
    )
    spent, plan = first["tokens"], said(first)
    asked = {"issue": issue, "plan": plan, "tokens": budget}
    decision = await ctx.approval(f"Solve #{issue['number']}: {issue['title']}?", context=asked, edits=True)
    plan, budget = decision["context"]["plan"], decision["context"]["tokens"]

    sandbox = Sandbox(ORIGIN, HOME / "checkouts" / ctx.run_id, f"agent/issue-{issue['number']}")
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Solve {about}\n\nThe approved plan:\n{plan}"}]
    writes: list[tuple[str, str]] = []
    red = 0
    for _ in range(MAX_TURNS):
        if spent >= budget:
            raise NonRetryable(f"The budget of {budget} tokens is spent; the tests have not passed.", "token_budget")
        answer = await ctx.step(ask, messages, min(MAX_OUTPUT, budget - spent), name="model", retry=3)
        spent += answer["tokens"]
        messages.append({"role": "assistant", "content": answer["content"]})
        ctx.progress(min(spent / budget, 1.0), f"{spent} of {budget} tokens")
        results = []
        for use in [block for block in answer["content"] if block["type"] == "tool_use"]:
            output = await ctx.step(use_tool, sandbox, writes, use["name"], use["input"], name=use["name"])
            if use["name"] == "write_file" and not output.startswith("refused"):
                writes.append((use["input"]["path"], use["input"]["content"]))
            results.append({"type": "tool_result", "tool_use_id": use["id"], "content": output})
        if results:
            messages.append({"role": "user", "content": results})
            continue
        tests = await ctx.step(check, sandbox, writes, name="tests")
        if tests["passed"]:
            request = {"issue": issue["number"], "branch": sandbox.branch}
            publish = partial(open_pull_request, sandbox, writes, issue, said(answer))
            opened = await ctx.effect("pull_request", publish, request, retry=3)
            return {**opened, "tokens": spent, "red": red}
        red += 1
        if red > MAX_RED:
            raise NonRetryable(f"The tests still fail after {red} attempts:\n{tests['output'][-1000:]}", "tests_red")
        messages.append({"role": "user", "content": f"The tests fail. Correct it.\n\n{tests['output']}"})
    raise NonRetryable(f"The agent has not finished after {MAX_TURNS} turns.", "too_many_turns")


def said(answer: dict[str, Any]) -> str:
    """Return the text of a response."""
    return "\n".join(block["text"] for block in answer["content"] if block["type"] == "text")
