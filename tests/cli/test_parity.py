"""Every command, on a store and through a server: the same, or refused there for a reason that is said.

The walk runs in this process (each command is a whole run of the command line), the server in one of its own, on the same store.
What only looks must find the same on both; what changes something is done to a thing of its own on each side, and what it says must
have the same fields.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ended, Treadle
from tests.fork_server import ROOT
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Engine, ExternalProductionHandle, NonRetryable
from treadle.dispatch import coordinator_of
from treadle.interfaces.cli.app import COMMANDS
from treadle.interfaces.cli.command import leaves, make
from treadle.interfaces.cli.execution import execute

pytestmark = pytest.mark.xdist_group("cli parity")

STORE_ONLY: dict[str, tuple[str, ...]] = {
    "demo": (),  # kills workers on a store of its own
    "dev": (),  # runs a worker and a server
    "up": (),  # is a worker and a server
    "serve": (),  # is a server
    "worker": ("--handlers", "jobs"),  # holds its work by the store
    "runner": (),  # the same
    "declare": ("--handlers", "jobs"),  # loads code
    "doctor": (),  # is about this machine
    "recover": (),  # is about the processes of the store
    "store migrate": (),  # changes the tables
    "functions record": ("01a1e467-120b-7000-a6ef-916aa15fb59d",),
    "store compact": (),  # changes the store's own file
    "store backup": ("copy.db",),  # copies the store's own file
    "store accept": (),  # concerns the store's own files
    "store export": ("red.jsonl",),  # writes a file on this machine
    "store import": ("red.jsonl",),  # reads a file into the store
    "import mongodump": ("dump",),  # reads files into the store
    "namespaces list": (),  # looks at the stores
}
IN_PROCESSES = {"top", "mcp", "lsp"}
"""On both, but they take the terminal or the standard streams of their process."""

FLOW = """\
namespace tea {
    event facet Boil(litres: Double) => (degrees: Long)
    workflow Brew(litres: Double) => (degrees: Long) andThen {
        water = Boil(litres = $.litres)
        sys.log(degrees = water.degrees)
        yield Brew(degrees = water.degrees)
    }
    workflow Add(n: Long) => (m: Long) andThen {
        yield Add(m = $.n + 1)
    }
}
"""
ISSUE = ROOT / "examples" / "dispatch" / "issue.json"
TOPOLOGY = (ROOT / "examples" / "goals" / "topology.yaml").read_text()
TRIED = "def handle(payload):\n    return {'tried': payload['n']}\n"


class Farm:
    """An external service with jobs that never finish."""

    async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
        return ExternalProductionHandle(f"farm/{payload['n']}", 3600, "queued")

    async def poll(self, external_job_id: str) -> dict[str, Any]:
        return {"url": "a.png"}


@dataclass
class Side:
    """The command line on the store or on the server, and the things that are its own."""

    name: str
    options: list[str]
    things: dict[str, str] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def __call__(self, command: str, *arguments: str, code: int = 0) -> Any:
        """The output of the command with --json, also recorded for the comparison."""
        ended = run(*command.split(), *arguments, "--json", *self.options)
        assert ended.code == code, (self.name, command, ended)
        lines = ended.out.splitlines() if command == "events" else [ended.out]
        value = [json.loads(line) for line in lines]
        self.said[command] = value
        return value[0]


def run(*arguments: str) -> Ended:
    """One run of the command line, here."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(list(arguments))
    return Ended(code, out.getvalue(), err.getvalue())


async def make_things(url: str) -> dict[str, list[str]]:
    """Tasks and runs that have come to something, of each kind two: one for each side."""
    engine = Engine(url)

    @engine.handler("boom")
    async def boom(payload: Any) -> None:
        raise NonRetryable("no good", "spoiled")

    @engine.handler("refund")
    async def refund(payload: Any) -> AwaitingApproval:
        return AwaitingApproval(ApprovalRequest.of("Refund it?"))

    @engine.handler("tea.Boil")
    async def boil(payload: Any) -> dict[str, Any]:
        if payload["litres"] < 0:
            raise NonRetryable("the kettle is broken", "broken")
        return {"degrees": 100}

    @engine.handler("wash")
    async def wash(cups: int, hot: bool = True) -> None:
        """Nobody calls it: its parameters are shown."""

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> Any:
        ctx.publish("progress", {"done": 1})
        return await ctx.wait_for("go")

    engine.specialist("render", Farm())
    made: dict[str, list[str]] = {}
    async with engine, engine.worker():
        ids = [[(await engine.enqueue(name, {"n": n})).id for n in range(count)] for name, count in _COUNTS.items()]
        runs = [(await engine.start_run([("tea.afl", FLOW)], "tea.Brew", {"litres": n})).id for n in (1, 1, -1, -1)]
        made["order"] = [(await engine.start_function("order", {})).id for _ in range(2)]
        while True:
            live = await engine.kernel.reads.list_tasks(kind="handler", states=("pending", "running"), limit=100)
            ended = [await engine.kernel.run_reads.get_run(each) for each in runs]
            waiting = [await engine.kernel.run_reads.get_run(each) for each in made["order"]]
            held = any(task.owner_id for task in live) or any(str(each.state) == "pending" for each in waiting)
            if not held and all(each.finished for each in ended) and not [task for task in live if task.name in _COUNTS]:
                break
        coordinator = coordinator_of(engine)
        made["job"] = [await coordinator.enqueue(json.loads(ISSUE.read_text())) for _ in range(2)]
        for _ in made["job"]:
            job = await coordinator.dequeue("worker-1")
            assert job is not None
            await coordinator.update_status(job.id, "failed", "no luck")
    made |= dict(zip(_COUNTS, ids, strict=True)) | {"done": runs[:2], "failed": runs[2:]}
    return made


_COUNTS = {"boom": 8, "refund": 4, "render": 4}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side, Treadle]]:
    folder = tmp_path_factory.mktemp("everywhere")
    treadle = Treadle(folder)
    for name, text in (("tea.afl", FLOW), ("topology.yaml", TOPOLOGY), ("tried.py", TRIED)):
        (folder / name).write_text(text)
    made = asyncio.run(make_things(f"sqlite:///{folder}/treadle.db"))
    secret = treadle.json("token", "create", "ada", "--scope", "admin")["secret"]
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("TREADLE_")]:  # noqa: TID251
        patch.delenv(name)
    patch.setenv("TREADLE_TOKEN", secret)
    with treadle.started("serve", "--json", TREADLE_HANDLER_ROOTS=".") as serving:
        url = json.loads(serving.first)["url"]
        local, remote = Side("store", ["--store", treadle.store]), Side("server", ["--server", url])
        for number, side in enumerate((local, remote)):
            for name, ids in made.items():
                side.things |= {f"{name} {n}": each for n, each in enumerate(ids[number::2])}
        yield local, remote, treadle
        assert serving.stop().code == 0
    patch.undo()


def change(side: Side) -> None:
    """Everything that changes something, with things of this side's own."""
    of, my = side.things, f"my-{side.name}"
    side("init", f"project-{side.name}")
    side("skill install", "--dir", f"skills-{side.name}")
    side("lists limit", "--key", my, "--max", "3")
    task = side("enqueue", "greet", "-p", "n=1", "--list", my)["id"]
    side("tasks pause", task)
    side("tasks resume", task)
    side("tasks cancel", task)
    side("tasks retry", task)
    side("dispatch enqueue", f"@{ISSUE}")
    side("dispatch retry", of["job 0"])
    side("dispatch cancel", of["job 0"])
    side("dlq retry", of["boom 0"])
    side("dlq discard", of["boom 1"])
    for name in ("lists pause", "lists resume", "lists drain"):
        side(name, my)
    side("lists policy", my, "ignore")
    side("store keep", my, "--failed", "1d")
    side("flows publish", my, "tea.afl")
    brew = side("submit", my, "-i", "litres=1", "--workflow", "tea.Brew")["id"]
    assert side("run", "tea.afl", "--workflow", "tea.Add", "-i", "n=1")["outputs"] == {"m": 2}
    side("runs pause", brew)
    side("runs resume", brew)
    side("runs cancel", brew)
    side("runs rerun", of["done 0"])
    side("runs fork", of["done 0"], "Brew.water")
    side("runs fork", of["done 0"], "Brew.water", "--dry-run")
    side("runs fork", of["done 0"], "Brew.water", "--result", '{"degrees": 90}', "--replace")
    side("runs retry", of["failed 0"])
    side("runs bulk", "cancel", "--search", of["failed 0"])
    delayed = side("functions start", "order", "--delay", "1d")["id"]
    side("runs reschedule", delayed, "--delay", "2d")
    side("runs bulk", "signal", "--signal", "stop", "--payload", "1", "--search", delayed)
    side("runs cancel", delayed)
    side("runs reopen", delayed)
    side("functions start", "order")
    side("signal", of["order 0"], "stop")
    side("update", of["order 0"], "set_address", "--payload", "1", "--idempotency-key", "k", "--wait", "0", code=6)
    side("functions adopt", of["order 0"], "--version", "2")
    side("handlers register", f"{my}.Try", "tried")
    side("handlers test", f"{my}.Try", "-p", "n=7")
    side("handlers remove", f"{my}.Try")
    side("schedules add", my, "--cron", "0 3 * * *", "--task", "greet")
    side("schedules edit", my, "--cron", "0 4 * * *")
    for name in ("schedules pause", "schedules resume", "schedules run-now"):
        side(name, my)
    side("schedules backfill", my, "--from", "2026-01-01", "--to", "2026-01-03")
    side("schedules remove", my)
    side("watchers add", my, "--directory", str(Path.cwd()), "--task", "greet")
    side("watchers edit", my, "--every", "60s")
    for name in ("watchers pause", "watchers resume", "watchers look", "watchers show", "watchers seen", "watchers remove"):
        side(name, my)
    side("alerts add", my, "--when", "worker_lost", "--to", "https://ops.example.org/hook", "--for", "5m", "--no-resolved")
    side("alerts edit", my, "--for", "10m")
    side("alerts show", my)
    side("alerts silence", my, "--for", "2h")
    side("alerts test", my, code=6)  # no worker runs
    side("alerts remove", my)
    wanted = side("objectives add", "Do it", "--key", my)["objective_id"]
    side("objectives approve", wanted)
    side("objectives block", wanted, "--reason", "not now")
    side("objectives unblock", wanted)
    side("objectives edit", wanted, "--title", "Do it well")
    approvals = [run("why", of[f"refund {n}"], "--json", *side.options).value["id"] for n in range(2)]
    asked = {each["task_id"]: each["id"] for each in side("approvals list")["approvals"]}
    side("approvals approve", asked[approvals[0]])
    side("approvals deny", asked[approvals[1]])
    side("external poll-now", of["render 0"])
    side("external cancel", of["render 1"])
    side("external rebuild")
    side("token create", my, "--scope", "read")
    side("token revoke", my)
    side("store prune")


def look(side: Side, at: dict[str, str]) -> None:
    """Everything that only looks, at the same things."""
    side("skill show")
    side("tasks list", "--state", "failed", "--name", "boom")
    side("tasks show", at["boom 2"])
    side("tasks parameters", "wash")
    side("why", at["boom 2"])
    side("dlq list")
    side("dlq show")
    side("lists list")
    side("lists show", "default")
    side("lists desired")
    side("runs list")
    for name in ("runs show", "runs watch", "runs steps", "runs logs", "runs usage"):
        side(name, at["done 0"])
    side("trace", at["done 0"])
    side("functions list")
    side("query", at["order 0"], "progress")
    side("flows list")
    side("flows show", "my-store")
    side("graph", "my-store")
    side("compile", "tea.afl")
    side("fmt", "--check", "tea.afl")
    side("fix", "tea.afl")
    side("handlers list")
    side("handlers rates")
    side("metrics", "--last", "1d")
    side("schedules show", side("schedules list", "--all")["schedules"][0]["id"])
    side("schedules preview", "--at", "2027-01-01T00:00")
    side("watchers list", "--all")
    side("alerts list")
    side("alerts history")
    side("objectives list")
    side("objectives show", side("objectives list")["objectives"][0]["objective_id"])
    side("objectives board")
    side("objectives claims")
    side("objectives topology check", "topology.yaml")
    side("approvals list", "--all")
    side("approvals show", side("approvals list", "--all")["approvals"][0]["id"])
    side("effects list")
    job = side("dispatch list")["jobs"][0]["id"]
    side("dispatch show", job)
    side("dispatch logs", job)
    side("external list", "--all")
    side("external show", side("external list", "--all")["jobs"][0]["id"])
    side("events", "--limit", "5")
    side("audit", "--limit", "5")
    side("stream", side("tasks list")["tasks"][0]["id"])
    side("workers")
    side("store verify")
    side("store info")
    side("status")
    side("token list")
    side("completion", "bash")


def alike(one: Any, other: Any) -> bool:
    """Whether both have the same fields with values of the same types; None and empty lists match anything."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return not one or not other or alike(one[0], other[0])
    return one is None or other is None or type(one) is type(other)


MOVING = {"trace", "handlers rates", "metrics", "status", "store info", "lists desired", "workers"}
"""Commands that report the present moment: the same fields, with other numbers."""


def test_every_command_does_the_same_on_a_store_and_on_a_server_or_is_refused_there(sides: tuple[Side, Side, Treadle]):
    local, remote, _ = sides
    for side in (local, remote):
        change(side)
    assert {name: (said, remote.said[name]) for name, said in local.said.items() if not alike(said, remote.said[name])} == {}
    changing = set(local.said)
    for side in (local, remote):
        side.said.clear()
        look(side, local.things)
    pairs = {name: (said, remote.said[name]) for name, said in local.said.items()}
    assert {name: pair for name, pair in pairs.items() if not (alike(*pair) if name in MOVING else pair[0] == pair[1])} == {}
    walked = changing | set(local.said) | set(STORE_ONLY) | IN_PROCESSES
    assert walked == {name for name, _ in leaves(COMMANDS)}


def test_store_commands_refuse_a_server_with_the_reason(sides: tuple[Side, Side, Treadle]):
    _, remote, _ = sides
    table = dict(leaves(COMMANDS))
    assert {name for name, leaf in table.items() if leaf.store_only} == set(STORE_ONLY) - {"demo"}
    for name, arguments in STORE_ONLY.items():
        refused = run(*name.split(), *arguments, "--json", *remote.options)
        assert (refused.code, refused.error["code"]) == (2, "not_over_http"), name
        assert table[name].store_only in refused.error["message"]


@pytest.mark.parametrize("where", ["store", "server"])
def test_interactive_commands_work_on_store_and_server(sides: tuple[Side, Side, Treadle], where: str):
    side, treadle = sides[where == "server"], sides[2]
    token = os.environ["TREADLE_TOKEN"]  # noqa: TID251
    assert treadle("mcp", *side.options, TREADLE_TOKEN=token).code == 0
    ours, theirs = pty.openpty()
    environment = treadle._environment({"TREADLE_TOKEN": token, "TERM": "xterm-256color"})
    command = [sys.executable, "-m", "treadle", "top", *side.options]
    with subprocess.Popen(command, cwd=treadle.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        try:
            while os.read(ours, 65536):
                os.write(ours, b"q")
        except OSError:  # it has let go of the terminal
            pass
        assert top.wait(BOUND) == 0
    os.close(ours)


@pytest.mark.parametrize("name", [name for name, _ in leaves(COMMANDS)])
def test_every_command_has_help_and_the_common_options(name: str):
    command: Any = make(dict(leaves(COMMANDS))[name])
    assert command.help
    assert all(param.help for param in command.params if not getattr(param, "hidden", False)), name
    options = {option for param in command.params for option in param.opts}
    assert {"--json", "--server", "--token", "--store", "--namespace", "--verbose"} <= options


def test_a_store_that_is_typed_wins_over_a_server_of_the_environment_for_worker_processes_too(treadle: Treadle):
    treadle.environment |= {"TREADLE_SERVER": "http://127.0.0.1:9"}
    store = ("--store", treadle.store)
    made = treadle.json("enqueue", "greet", "-p", "name=Ada", *store)["id"]
    with treadle.started("worker", "--handlers", "jobs", "--processes", "2", "--json", *store) as worker:
        assert worker.out.wait_for('"pid"')
        ended = treadle.json("enqueue", "greet", "-p", "name=Bob", "--wait", *store)
        assert ended["result"] == {"hello": "Bob"}
    assert treadle.json("tasks", "show", made, *store)["id"] == made
