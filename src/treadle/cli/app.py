"""All commands, in one table: what they are called, where they are, and what they do."""

from __future__ import annotations

from functools import cache

import click

from treadle.cli.command import Branch, Group, Leaf, common_options, leaves, make
from treadle.cli.exits import EXIT_CODES


def _commands(module: str, names: str) -> tuple[Leaf, ...]:
    """The commands of a module: `run-now` is its function `run_now`, `list` its `list_<module>`, `test=try_out` its `try_out`."""
    found = []
    for each in names.split():
        name, _, function = each.partition("=")
        function = function or (f"list_{module}" if name == "list" else name.replace("-", "_"))
        found.append(Leaf(name, f"commands.{module}:{function}"))
    return tuple(found)


COMMANDS: tuple[Leaf | Branch, ...] = (
    Leaf(
        "demo",
        "demo.story:demo",
        "See it work: parallel tasks, a retry, a killed worker, a repaired workflow, a function that sleeps and asks. Ten seconds.",
    ),
    Leaf(
        "up",
        "commands.worker:up",
        "Start the engine: bring the store up to date, run a worker and serve HTTP until SIGTERM or Ctrl-C.",
        quiet=False,
        store_only="it runs a worker and serves HTTP itself",
    ),
    Leaf(
        "serve",
        "commands.serve:serve",
        "Serve HTTP on a store until SIGTERM or Ctrl-C; workers run elsewhere. It brings the store up to date first.",
        quiet=False,
        store_only="it is a server itself",
    ),
    Leaf(
        "mcp",
        "commands.mcp:mcp",
        "Serve the Model Context Protocol, for one client over stdio (until it closes stdin), or with --http for many.",
    ),
    Leaf(
        "worker",
        "commands.worker:worker",
        "Run handlers until SIGTERM or Ctrl-C, then let running work finish. A second Ctrl-C stops at once.",
        quiet=False,
        store_only="handlers hold their work by the store (workers over HTTP use its worker protocol)",
    ),
    Leaf(
        "runner",
        "commands.runner:runner",
        "Handle tasks of event facets until SIGTERM or Ctrl-C, then let running work finish.",
        quiet=False,
        store_only="handlers hold their work by the store",
    ),
    Leaf("enqueue", "commands.enqueue:enqueue", "Put a task into the store; when this returns, it is durable."),
    Leaf(
        "compile",
        "commands.afl:compile_files",
        "Compile AFL sources together; all diagnostics at once, and exit 2 if there is an error.",
    ),
    Leaf(
        "fmt",
        "commands.afl:fmt",
        "Format AFL files in place; `-` formats stdin to stdout. If one cannot be parsed, none is changed.",
    ),
    Leaf("graph", "commands.afl:graph", "Print the steps of workflows and what they wait for, as a graph."),
    Leaf("run", "commands.run:run", "Run a workflow to its end and print its outputs; this process is a worker meanwhile."),
    Leaf("submit", "commands.run:submit", "Start a run of a workflow; when this returns, it is durable, and workers do it."),
    Leaf(
        "signal",
        "commands.functions:signal",
        "Tell a run of a durable function something; it is kept until the function waits for it.",
    ),
    Leaf(
        "why",
        "commands.tasks:why",
        "Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task.",
    ),
    Leaf("top", "commands.top:top", "Watch lists, runs, workers and rates, live; q leaves."),
    Leaf(
        "events",
        "commands.events:events",
        "Show the last events, or those after one; with --follow each as it happens, one line (or JSON object) each.",
    ),
    Leaf("status", "commands.system:status", "Say how the system is: what is wrong, what there is to do, and who does it."),
    Leaf(
        "servers", "commands.system:servers", "List the servers, newest first; one that missed three heartbeats is shown as lost."
    ),
    Leaf(
        "doctor",
        "commands.doctor:doctor",
        "Check this machine and the store; exit 1 if something is wrong.",
        store_only="it checks this machine, and the store that this machine uses",
    ),
    Leaf(
        "recover",
        "commands.system:recover",
        "See to what crashed processes left: approvals, expired leases, schedules, watchers. Live work of others is never touched.",
        store_only="it frees what the processes of a store left",
    ),
    Leaf(
        "completion",
        "commands.completion:completion",
        "Print the script that completes commands, options, states and names in a shell: `source <(treadle completion bash)`.",
    ),
    Branch("tasks", "Look at tasks and operate them.", _commands("tasks", "list show cancel retry pause resume")),
    Branch(
        "runs",
        "Look at runs of workflows and functions, and operate them.",
        _commands("runs", "list show steps logs usage pause resume cancel retry rerun fork bulk"),
    ),
    Branch("functions", "Durable functions: what is known, started and adopted.", _commands("functions", "list start adopt")),
    Branch("flows", "AFL sources in the store, by name and version.", _commands("flows", "list show publish")),
    Branch("handlers", "Handlers that runners load from the store.", _commands("handlers", "list register remove test=try_out")),
    Branch(
        "lists",
        "Task lists: what is in them, and how their work is held back.",
        _commands("lists", "list show pause resume drain policy limit desired"),
    ),
    Branch(
        "schedules",
        "Schedules: work that is started by time.",
        _commands("schedules", "add edit list show preview pause resume remove run-now backfill"),
    ),
    Branch(
        "external",
        "Jobs in outside services: what they work on, and how far they are.",
        _commands("external", "list=list_jobs show poll-now cancel rebuild"),
    ),
    Branch("approvals", "Approvals: what waits for a person's decision.", _commands("approvals", "list show approve deny")),
    Branch(
        "watchers",
        "Watchers: work that is started when files or addresses change.",
        _commands("watchers", "add edit list show seen pause resume remove look"),
    ),
    Branch(
        "objectives",
        "Objectives: what people want, and how far it is.",
        (
            *_commands("objectives", "add list show approve block unblock edit board claims"),
            Branch(
                "topology",
                "Topology files: which roles of the goal pipeline workers play, and how.",
                _commands("topology", "check"),
            ),
        ),
    ),
    Branch("dlq", "Dead letters: what failed for good.", _commands("dlq", "list=list_dead_letters show retry discard")),
    Branch(
        "store",
        "The store: schema, log, contents.",
        (
            Leaf("migrate", "commands.store:migrate", store_only="it changes the tables themselves"),
            *_commands("store", "verify info prune keep"),
            Leaf("backup", "commands.store:backup", store_only="it copies the store's own files to this machine"),
        ),
    ),
    Branch("token", "Tokens: who may use the server, and for what.", _commands("token", "create list=list_tokens revoke")),
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
