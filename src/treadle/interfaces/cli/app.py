"""The table of all commands: names, modules and summaries."""

from __future__ import annotations

from functools import cache

import click

from treadle.interfaces.cli.command import Branch, Group, Leaf, common_options, leaves, make
from treadle.version import VERSION


def _commands(group: str, names: str, module: str = "") -> tuple[Leaf, ...]:
    """Commands of a group: `list` is the call `list`, `show=get` the call `get`, and `add*` the function `add` of the module."""
    leaves = []
    for word in names.split():
        name, _, target = word.rstrip("*").partition("=")
        target = target or name.replace("-", "_")
        place = f"{module or f'commands.{group}'}:{target}" if word.endswith("*") else f"{group}.{target}"
        leaves.append(Leaf(name, place))
    return tuple(leaves)


REPEATS = (
    ("runs resume ID", "it is paused, or seems stuck", "the same run goes on; nothing is repeated, missing tasks are repaired"),
    (
        "runs retry ID",
        "steps failed, and the cause is fixed",
        "the same run goes on; what failed is repeated, completed steps are not",
    ),
    ("runs retry ID STEP", "only one failed step or block is to be repeated", "the same, for what failed in this step"),
    (
        "runs reopen ID",
        "a function's run was canceled by mistake, before it cleaned up",
        "the same run goes on after its last step; calls, approvals and children canceled with it are requested again",
    ),
    (
        "runs fork ID STEP",
        "a completed step has a wrong result, or had wrong inputs",
        "a new run keeps what does not depend on the step; the old one stays, or is canceled with --replace",
    ),
    ("runs rerun ID", "everything is to be repeated, with the same inputs or others", "a new run starts from the beginning"),
    (
        "functions adopt RUN --version N",
        "no worker offers the version of its function, or its code deviates from the recorded steps",
        "the same run goes on with the code of another version; recorded steps keep their results",
    ),
    ("runs bulk reopen", "many runs of functions were canceled by mistake", "each of them is reopened"),
    ("runs bulk retry", "many runs failed for one reason", "each of them is retried"),
    ("tasks retry ID", "a task without a run failed", "the same task is repeated, with new counters"),
    ("dlq retry", "many tasks failed for one reason", "each of them is retried, with everything that failed in its run"),
)
"""The commands that continue or repeat work: each with its situation and its effect; also a page of the documentation."""

FREQUENT = (
    ("init", "write a small project with a test, in this folder or a new one"),
    ("dev", "run the project with its dashboard; reload it when a file changes"),
    ("up", "run it in production: a worker, the server, the dashboard"),
    ("enqueue", "store a task; it is durable when this returns"),
    ("runs", "list, show, retry, fork and cancel runs"),
    ("why", "explain in one line why a task or run waits, or failed"),
)
SECTIONS = {
    "Project": "init dev demo up serve worker runner declare doctor completion",
    "Tasks": "enqueue tasks handlers lists dlq approvals external effects",
    "Runs": "runs functions signal query update stream",
    "Workflows": "run submit flows compile fmt fix graph lsp",
    "Triggers": "schedules watchers alerts",
    "Agents": "objectives dispatch mcp skill",
    "Observe": "status why trace events audit metrics workers top",
    "Store": "store namespaces token recover import",
}
"""All commands, by the section of the help that names them."""

COMMANDS: tuple[Leaf | Branch, ...] = (
    Leaf(
        "demo",
        "demo:demo",
        "Show the engine at work: parallel tasks, a retry, a killed worker, a repaired workflow, a sleeping function. Ten seconds.",
    ),
    Leaf(
        "init",
        "project:init",
        "Write a small project that survives `kill -9`, with a test, a Dockerfile and a compose file. Overwrites nothing.",
    ),
    Branch("skill", "Instructions for coding agents that match this version.", _commands("skill", "install* show*", "project")),
    Leaf(
        "dev",
        "commands.dev:dev",
        "Run the project in this folder: a worker, the server and the dashboard. Reload it when its files change.",
        quiet=False,
        store_only="it runs a worker and serves HTTP itself",
    ),
    Leaf(
        "up",
        "commands.worker:up",
        "Start the engine: migrate the store, run a worker and serve HTTP until SIGTERM or Ctrl-C.",
        quiet=False,
        store_only="it runs a worker and serves HTTP itself",
    ),
    Leaf(
        "serve",
        "commands.serve:serve",
        "Migrate the store, then serve HTTP until SIGTERM or Ctrl-C; workers run elsewhere.",
        quiet=False,
        store_only="it is a server itself",
    ),
    Leaf(
        "mcp",
        "commands.serve:mcp",
        "Serve the Model Context Protocol to one client over stdio, until it closes stdin, or to many with --http.",
    ),
    Leaf(
        "worker",
        "commands.worker:worker",
        "Run handlers until SIGTERM or Ctrl-C, then let running work finish. A second Ctrl-C stops immediately.",
        quiet=False,
        store_only="handlers hold their leases in the store (remote workers use the worker protocol over HTTP)",
    ),
    Leaf(
        "runner",
        "commands.handlers:runner",
        "Handle tasks of event facets until SIGTERM or Ctrl-C, then let running work finish.",
        quiet=False,
        store_only="handlers hold their leases in the store",
    ),
    Leaf(
        "declare",
        "commands.worker:declare",
        "Show how limits and triggers declared in code differ from the store, and apply them, as a starting worker does.",
        store_only="it loads the program's code",
    ),
    Leaf("enqueue", "commands.queue:enqueue", "Enqueue a task; when this returns, it is durable."),
    Leaf(
        "compile",
        "commands.afl:compile_files",
        "Compile AFL sources together and print all diagnostics; exit 2 if there is an error.",
    ),
    Leaf(
        "fmt",
        "commands.afl:fmt",
        "Format AFL files in place; `-` formats stdin to stdout. If one file has a syntax error, none is changed.",
    ),
    Leaf(
        "fix",
        "commands.afl:fix",
        "Apply the fixes of all diagnostics to AFL files: print the changes as a diff, or write them.",
    ),
    Leaf("lsp", "commands.serve:lsp", "Serve the Language Server Protocol for AFL to one editor over stdio, until it disconnects."),
    Leaf("graph", "commands.afl:graph", "Print the steps of workflows and their dependencies as a graph."),
    Leaf("run", "commands.run:run", "Run a workflow to its end in this process and print its outputs."),
    Leaf(
        "submit", "commands.run:submit", "Start a run of a workflow and leave it to the workers; when this returns, it is durable."
    ),
    Leaf(
        "signal",
        "commands.functions:signal",
        "Send a signal to a run of a durable function; it is kept until the function waits for it.",
    ),
    Leaf(
        "query",
        "runs.query",
        "Print the value that a durable function last published under a name; needs no worker.",
    ),
    Leaf(
        "update",
        "commands.functions:update",
        "Send an update to a durable function and print its answer; exit 1 if it rejects the update, 6 if no answer comes in time.",
    ),
    Leaf(
        "why",
        "system.why",
        "Explain the state of a task, a run or an objective in one line; for an approval or an external job, that of its task.",
    ),
    Leaf(
        "trace",
        "traces.get",
        "Show everything that followed from one start, across runs, tasks, approvals and external jobs, on one time axis.",
    ),
    Leaf("top", "commands.top:top", "Show lists, runs, workers and rates in a live view; ? lists the keys, q quits."),
    Leaf("metrics", "metrics.series", "Show finished and failed work, durations, waits and costs over time, by handler and more."),
    Leaf(
        "events",
        "commands.history:events",
        "Show the last events, or those after one; with --follow, print each new event as one line (or JSON object).",
    ),
    Leaf("audit", "events.audit", "Show the changes by operators and tokens, newest first, with the values before and after."),
    Leaf(
        "stream",
        "commands.history:stream",
        "List the streams of a run, or print one: text as it is, other entries and notices on lines of their own.",
    ),
    Leaf("status", "commands.system:status", "Show the health of the system: problems, pending work, and workers."),
    Leaf(
        "workers",
        "servers.list",
        "List the processes of workers, newest first; one that is dead or missed three heartbeats is shown as lost.",
    ),
    Leaf(
        "doctor",
        "commands.system:doctor",
        "Check this machine and the store; exit 1 if a check fails.",
        store_only="it checks this machine, and the store that this machine uses",
    ),
    Leaf(
        "recover",
        "commands.system:recover",
        "Clean up after crashed processes: approvals, expired leases, schedules, watchers. Never touches the live work of others.",
        store_only="it releases the leases of processes that use the store",
    ),
    Leaf(
        "completion",
        "commands.completion:completion",
        "Print the script that completes commands, options, states and names in a shell: `source <(treadle completion bash)`.",
    ),
    Branch("tasks", "Show and operate tasks.", _commands("tasks", "list show=get parameters cancel retry pause resume")),
    Branch(
        "runs",
        "Show and operate runs of workflows and functions.",
        _commands("runs", "list show* watch* steps* logs* usage pause resume* reschedule cancel retry* reopen rerun* fork* bulk*"),
        tuple((command, f"{situation}: {effect}") for command, situation, effect in REPEATS),
    ),
    Branch(
        "functions",
        "List, start, adopt and record durable functions.",
        (
            *_commands("functions", "list start* adopt*"),
            Leaf("record", "commands.functions:record", store_only="it writes values of the store in the clear"),
        ),
    ),
    Branch(
        "flows", "Publish and show AFL sources, by name and version.", _commands("flows", "list show* publish*", "commands.afl")
    ),
    Branch(
        "handlers",
        "Register handlers that runners load.",
        _commands("handlers", "list=list_handlers* rates register* remove test=try_out*"),
    ),
    Branch(
        "lists",
        "Show task lists, and pause, drain or limit them.",
        _commands("lists", "list show=get pause resume drain policy=set_policy limit* desired", "commands.queue"),
    ),
    Branch(
        "schedules",
        "Start work by time.",
        _commands(
            "schedules", "add=add_schedule* edit list show=get preview* pause resume remove run-now backfill*", "commands.triggers"
        ),
    ),
    Branch(
        "external",
        "Show and operate jobs in external services.",
        _commands("external_jobs", "list show=get poll-now cancel rebuild*", "commands.system"),
    ),
    Branch("effects", "Show effects whose outcome is unknown.", _commands("effects", "list")),
    Branch("approvals", "Show approvals and decide them.", _commands("approvals", "list show=get approve* deny*")),
    Branch(
        "watchers",
        "Start work when files or URLs change.",
        _commands("watchers", "add=add_watcher* edit list show=get seen pause resume remove look", "commands.triggers"),
    ),
    Branch(
        "alerts",
        "Report problems by webhook, mail or chat, once per cause.",
        _commands("alerts", "add=create edit list=list_alerts* show=get test silence history=list remove", "commands.triggers"),
    ),
    Branch(
        "objectives",
        "Manage the objectives of the goal pipeline.",
        (
            *_commands("objectives", "add list show=get approve block unblock edit board claims"),
            Branch(
                "topology",
                "Check topology files: the roles that workers play in the goal pipeline.",
                _commands("topology", "check*", "commands.objectives"),
            ),
        ),
    ),
    Branch(
        "dispatch",
        "Show and operate dispatch jobs: GitHub issues for agents.",
        _commands("dispatch", "list show=get enqueue logs retry cancel"),
    ),
    Branch(
        "dlq",
        "Show, retry and discard dead letters: permanently failed tasks.",
        _commands("dead_letters", "list show* retry* discard*", "commands.queue"),
    ),
    Branch(
        "store",
        "Maintain the store: schema, log, contents.",
        (
            Leaf("migrate", "commands.store:migrate", store_only="it changes the tables themselves"),
            *_commands("store", "verify* info prune* keep"),
            Leaf("accept", "commands.store:accept", store_only="it concerns the store's own files"),
            Leaf("compact", "commands.store:compact", store_only="it changes the store's own file on this machine"),
            Leaf("backup", "commands.store:backup", store_only="it copies the store's own files to this machine"),
            Leaf("export", "commands.store:export", store_only="it writes a file on this machine"),
            Leaf("import", "commands.store:import_file", store_only="it reads a file of this machine into the store"),
        ),
    ),
    Branch(
        "namespaces",
        "Show where namespaces live.",
        (Leaf("list", "commands.store:list_namespaces", store_only="it looks at the stores themselves"),),
    ),
    Branch(
        "import",
        "Import records of other systems.",
        (Leaf("mongodump", "commands.store:mongodump", store_only="it reads files of this machine into the store"),),
    ),
    Branch(
        "token", "Manage the tokens of the server and their scopes.", _commands("tokens", "create* list revoke", "commands.system")
    ),
)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"treadle {VERSION}")
        ctx.exit()


def _overview() -> str:
    """The help of `treadle` itself, on one screen of 24 lines and 80 columns."""
    return "\n".join(
        (
            "Usage: treadle [OPTIONS] COMMAND [ARGS]...    (treadle COMMAND -h explains one)",
            "",
            "Most used:",
            *(f"  {name:<9}{text}" for name, text in FREQUENT),
            "",
            "All commands:",
            *(f"  {title:<11}{names}" for title, names in SECTIONS.items()),
            "",
            "Options: --store URL, --namespace NAME, --json, -v, --server URL, --token SECRET",
            "         (before or after the command), --version, -h or --help",
            "Exit codes: 0 done, 1 failed, 2 bad usage, 3 not found, 4 store unusable,",
            "            5 refused, 6 wait timed out, 70 bug in Treadle, 130 interrupted",
        )
    )


@cache
def make_app() -> Group:
    """Build the command line; a command's module is imported when the command is used."""
    version = click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version"
    )
    return Group(
        COMMANDS,
        name="treadle",
        params=[*common_options(environment=True), version],
        help="Treadle: a durable work engine for agents and long-running jobs.",
        overview=_overview(),
        context_settings={"show_default": True, "max_content_width": 120, "help_option_names": ["-h", "--help"]},
    )


def load_all() -> None:
    """Import every command, for processes that run many."""
    for _, leaf in leaves(COMMANDS):
        make(leaf)
