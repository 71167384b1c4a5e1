"""All commands, in one table: what they are called, where they are, and what they do."""

from __future__ import annotations

from functools import cache

import click

from treadle.cli.command import Branch, Group, Leaf, common_options, leaves, make
from treadle.cli.exits import EXIT_CODES

COMMANDS: tuple[Leaf | Branch, ...] = (
    Leaf(
        "demo",
        "demo:demo",
        "See it work: parallel tasks, a retry, a killed worker, a repaired workflow, a function that sleeps and asks. Ten seconds.",
    ),
    Leaf(
        "up",
        "up:up",
        "Start the engine: bring the store up to date, run a worker and serve HTTP until SIGTERM or Ctrl-C.",
        quiet=False,
        store_only="it runs a worker and serves HTTP itself",
    ),
    Leaf(
        "serve",
        "serve:serve",
        "Serve HTTP on a store until SIGTERM or Ctrl-C; workers run elsewhere. It brings the store up to date first.",
        quiet=False,
        store_only="it is a server itself",
    ),
    Leaf(
        "mcp",
        "mcp:mcp",
        "Serve the Model Context Protocol, for one client over stdio (until it closes stdin), or with --http for many.",
    ),
    Leaf(
        "worker",
        "worker:worker",
        "Run handlers until SIGTERM or Ctrl-C, then let running work finish. A second Ctrl-C stops at once.",
        quiet=False,
        store_only="handlers hold their work by the store (workers over HTTP use its worker protocol)",
    ),
    Leaf(
        "runner",
        "runner:runner",
        "Handle tasks of event facets until SIGTERM or Ctrl-C, then let running work finish.",
        quiet=False,
        store_only="handlers hold their work by the store",
    ),
    Leaf("enqueue", "enqueue:enqueue", "Put a task into the store; when this returns, it is durable."),
    Leaf(
        "compile",
        "compile:compile_files",
        "Compile AFL sources together; all diagnostics at once, and exit 2 if there is an error.",
    ),
    Leaf("fmt", "fmt:fmt", "Format AFL files in place; `-` formats stdin to stdout. If one cannot be parsed, none is changed."),
    Leaf("graph", "graph:graph", "Print the steps of workflows and what they wait for, as a graph."),
    Leaf("run", "run:run", "Run a workflow to its end and print its outputs; this process is a worker meanwhile."),
    Leaf("submit", "submit:submit", "Start a run of a workflow; when this returns, it is durable, and workers do it."),
    Leaf("signal", "functions:signal", "Tell a run of a durable function something; it is kept until the function waits for it."),
    Leaf(
        "why",
        "tasks:why",
        "Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task.",
    ),
    Leaf("top", "top:top", "Watch lists, runs, workers and rates, live; q leaves."),
    Leaf(
        "events",
        "events:events",
        "Show the last events, or those after one; with --follow each as it happens, one line (or JSON object) each.",
    ),
    Leaf("status", "status:status", "Say how the system is: what is wrong, what there is to do, and who does it."),
    Leaf("servers", "servers:servers", "List the servers, newest first; one that missed three heartbeats is shown as lost."),
    Leaf(
        "doctor",
        "doctor:doctor",
        "Check this machine and the store; exit 1 if something is wrong.",
        store_only="it checks this machine, and the store that this machine uses",
    ),
    Leaf(
        "recover",
        "recover:recover",
        "See to what crashed processes left: approvals, expired leases, schedules, watchers. Live work of others is never touched.",
        store_only="it frees what the processes of a store left",
    ),
    Leaf(
        "completion",
        "completion:completion",
        "Print the script that completes commands, options, states and names in a shell: `source <(treadle completion bash)`.",
    ),
    Branch(
        "tasks",
        "Look at tasks and operate them.",
        (
            Leaf("list", "tasks:list_tasks"),
            Leaf("show", "tasks:show"),
            Leaf("cancel", "tasks:cancel"),
            Leaf("retry", "tasks:retry"),
            Leaf("pause", "tasks:pause"),
            Leaf("resume", "tasks:resume"),
        ),
    ),
    Branch(
        "runs",
        "Look at runs of workflows and functions, and operate them.",
        (
            Leaf("list", "runs:list_runs"),
            Leaf("show", "runs:show"),
            Leaf("steps", "runs:steps"),
            Leaf("logs", "runs:logs"),
            Leaf("usage", "usage:usage"),
            Leaf("pause", "runs:pause"),
            Leaf("resume", "runs:resume"),
            Leaf("cancel", "runs:cancel"),
            Leaf("retry", "runs:retry"),
            Leaf("rerun", "runs:rerun"),
            Leaf("fork", "runs:fork"),
            Leaf("bulk", "runs:bulk"),
        ),
    ),
    Branch(
        "functions",
        "Durable functions: what is known, started and adopted.",
        (
            Leaf("list", "functions:list_functions"),
            Leaf("start", "functions:start"),
            Leaf("adopt", "functions:adopt"),
        ),
    ),
    Branch(
        "flows",
        "AFL sources in the store, by name and version.",
        (
            Leaf("list", "flows:list_flows"),
            Leaf("show", "flows:show"),
            Leaf("publish", "flows:publish"),
        ),
    ),
    Branch(
        "handlers",
        "Handlers that runners load from the store.",
        (
            Leaf("list", "handlers:list_handlers"),
            Leaf("register", "handlers:register"),
            Leaf("remove", "handlers:remove"),
            Leaf("test", "handlers:try_out"),
        ),
    ),
    Branch(
        "lists",
        "Task lists: what is in them, and how their work is held back.",
        (
            Leaf("list", "lists:list_lists"),
            Leaf("show", "lists:show"),
            Leaf("pause", "lists:pause"),
            Leaf("resume", "lists:resume"),
            Leaf("drain", "lists:drain"),
            Leaf("policy", "lists:policy"),
            Leaf("limit", "lists:limit"),
            Leaf("desired", "lists:desired"),
        ),
    ),
    Branch(
        "schedules",
        "Schedules: work that is started by time.",
        (
            Leaf("add", "schedules:add"),
            Leaf("edit", "schedules:edit"),
            Leaf("list", "schedules:list_schedules"),
            Leaf("show", "schedules:show"),
            Leaf("preview", "schedules:preview"),
            Leaf("pause", "schedules:pause"),
            Leaf("resume", "schedules:resume"),
            Leaf("remove", "schedules:remove"),
            Leaf("run-now", "schedules:run_now"),
            Leaf("backfill", "schedules:backfill"),
        ),
    ),
    Branch(
        "external",
        "Jobs in outside services: what they work on, and how far they are.",
        (
            Leaf("list", "external:list_jobs"),
            Leaf("show", "external:show"),
            Leaf("poll-now", "external:poll_now"),
            Leaf("cancel", "external:cancel"),
            Leaf("rebuild", "external:rebuild"),
        ),
    ),
    Branch(
        "approvals",
        "Approvals: what waits for a person's decision.",
        (
            Leaf("list", "approvals:list_approvals"),
            Leaf("show", "approvals:show"),
            Leaf("approve", "approvals:approve"),
            Leaf("deny", "approvals:deny"),
        ),
    ),
    Branch(
        "watchers",
        "Watchers: work that is started when files or addresses change.",
        (
            Leaf("add", "watchers:add"),
            Leaf("edit", "watchers:edit"),
            Leaf("list", "watchers:list_watchers"),
            Leaf("show", "watchers:show"),
            Leaf("seen", "watchers:seen"),
            Leaf("pause", "watchers:pause"),
            Leaf("resume", "watchers:resume"),
            Leaf("remove", "watchers:remove"),
            Leaf("look", "watchers:look"),
        ),
    ),
    Branch(
        "objectives",
        "Objectives: what people want, and how far it is.",
        (
            Leaf("add", "objectives:add"),
            Leaf("list", "objectives:list_objectives"),
            Leaf("show", "objectives:show"),
            Leaf("approve", "objectives:approve"),
            Leaf("block", "objectives:block"),
            Leaf("unblock", "objectives:unblock"),
            Leaf("edit", "objectives:edit"),
            Leaf("board", "objectives:board"),
            Leaf("claims", "objectives:claims"),
            Branch(
                "topology",
                "Topology files: which roles of the goal pipeline workers play, and how.",
                (Leaf("check", "topology:check"),),
            ),
        ),
    ),
    Branch(
        "dlq",
        "Dead letters: what failed for good.",
        (
            Leaf("list", "dlq:list_letters"),
            Leaf("show", "dlq:show"),
            Leaf("retry", "dlq:retry"),
            Leaf("discard", "dlq:discard"),
        ),
    ),
    Branch(
        "store",
        "The store: schema, log, contents.",
        (
            Leaf("migrate", "store:migrate", store_only="it changes the tables themselves"),
            Leaf("verify", "store:verify"),
            Leaf("info", "store:info"),
            Leaf("prune", "store_upkeep:prune"),
            Leaf("keep", "store_upkeep:keep"),
            Leaf("backup", "store_upkeep:backup", store_only="it copies the store's own files to this machine"),
        ),
    ),
    Branch(
        "token",
        "Tokens: who may use the server, and for what.",
        (
            Leaf("create", "token:create"),
            Leaf("list", "token:list_tokens"),
            Leaf("revoke", "token:revoke"),
        ),
    ),
)


class Root(Group):
    """The command `treadle`."""

    def more_help(self) -> dict[str, list[tuple[str, str]]]:
        """The commands, and the exit codes of all of them."""
        return super().more_help() | {"Exit codes": [(str(code), meaning) for code, meaning in EXIT_CODES.items()]}


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"treadle {version('treadle')}")
        ctx.exit()


@cache
def make_app() -> Group:
    """The command line; what is not chosen on it is not loaded."""
    version = click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version"
    )
    return Root(
        COMMANDS,
        name="treadle",
        params=[*common_options(environment=True), version],
        help="Treadle: a durable work engine for agents and long-running jobs.",
        context_settings={"show_default": True, "max_content_width": 120},
    )


def load_all() -> None:
    """Load every command, for those who run many."""
    for _, leaf in leaves(COMMANDS):
        make(leaf)
