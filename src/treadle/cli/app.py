"""All commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import (
    approvals,
    dlq,
    doctor,
    enqueue,
    events,
    external,
    flows,
    fmt,
    functions,
    graph,
    handlers,
    lists,
    mcp,
    objectives,
    recover,
    run,
    runner,
    runs,
    schedules,
    serve,
    servers,
    status,
    store,
    store_upkeep,
    submit,
    tasks,
    token,
    top,
    topology,
    up,
    usage,
    watchers,
    worker,
)
from treadle.cli import compile as compiling
from treadle.cli.exits import EXIT_CODES
from treadle.cli.helping import App
from treadle.cli.session import (
    Common,
    RootJsonOption,
    RootNamespaceOption,
    RootServerOption,
    RootStoreOption,
    RootTokenOption,
    RootVerboseOption,
    Session,
    command,
)

_EPILOG = "Exit codes:\n\n" + "\n".join(f"- `{code}` {meaning}" for code, meaning in EXIT_CODES.items())

app = App(
    help="Treadle: a durable work engine for agents and long-running jobs.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_tasks = App(help="Look at tasks and operate them.", no_args_is_help=True)
_runs = App(help="Look at runs of workflows and functions, and operate them.", no_args_is_help=True)
_functions = App(help="Durable functions: what is known, started and adopted.", no_args_is_help=True)
_flows = App(help="AFL sources in the store, by name and version.", no_args_is_help=True)
_lists = App(help="Task lists: what is in them, and how their work is held back.", no_args_is_help=True)
_handlers = App(help="Handlers that runners load from the store.", no_args_is_help=True)
_schedules = App(help="Schedules: work that is started by time.", no_args_is_help=True)
_external = App(help="Jobs in outside services: what they work on, and how far they are.", no_args_is_help=True)
_approvals = App(help="Approvals: what waits for a person's decision.", no_args_is_help=True)
_watchers = App(help="Watchers: work that is started when files or addresses change.", no_args_is_help=True)
_dlq = App(help="Dead letters: what failed for good.", no_args_is_help=True)
_store = App(help="The store: schema, log, contents.", no_args_is_help=True)
_token = App(help="Tokens: who may use the server, and for what.", no_args_is_help=True)
_objectives = App(help="Objectives: what people want, and how far it is.", no_args_is_help=True)
_topology = App(help="Topology files: which roles of the goal pipeline workers play, and how.", no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"treadle {version('treadle')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    url: RootStoreOption = None,
    namespace: RootNamespaceOption = None,
    as_json: RootJsonOption = False,
    verbose: RootVerboseOption = False,
    server: RootServerOption = None,
    token: RootTokenOption = None,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")] = False,
) -> None:
    """Treadle: a durable work engine for agents and long-running jobs."""

    def typed(name: str, value: str | None) -> str | None:
        source = ctx.get_parameter_source(name)
        return value if source is not None and source.name == "COMMANDLINE" else None

    ctx.obj = Common(url, namespace, as_json, verbose, server, token, typed("url", url), typed("server", server))


async def demo(session: Session) -> None:
    """See it work: parallel tasks, a retry, a killed worker, a repaired workflow, a function that sleeps and asks. Ten seconds.

    Runs on SQLite in a temporary folder, whatever TREADLE_STORE says; with --store, there in a namespace of its own.
    """
    from treadle.cli.demo import run_demo  # much that other commands do not need

    await run_demo(session)


app.command("demo")(command(demo))
app.command("up")(command(up.up, quiet=False))
app.command("serve")(command(serve.serve, quiet=False))
app.command("mcp")(command(mcp.mcp))
app.command("worker")(command(worker.worker, quiet=False))
app.command("runner")(command(runner.runner, quiet=False))
app.command("enqueue")(command(enqueue.enqueue))
app.command("compile")(command(compiling.compile_files))
app.command("fmt")(command(fmt.fmt))
app.command("graph")(command(graph.graph))
app.command("run")(command(run.run))
app.command("submit")(command(submit.submit))
app.command("signal")(command(functions.signal))
app.command("why")(command(tasks.why))
app.command("top")(command(top.top))
app.command("events")(command(events.events))
app.command("status")(command(status.status))
app.command("servers")(command(servers.servers))
app.command("doctor")(command(doctor.doctor))
app.command("recover")(command(recover.recover))

_tasks.command("list")(command(tasks.list_tasks))
_tasks.command("show")(command(tasks.show))
_tasks.command("cancel")(command(tasks.cancel))
_tasks.command("retry")(command(tasks.retry))
_tasks.command("pause")(command(tasks.pause))
_tasks.command("resume")(command(tasks.resume))
app.add_typer(_tasks, name="tasks")

_runs.command("list")(command(runs.list_runs))
_runs.command("show")(command(runs.show))
_runs.command("steps")(command(runs.steps))
_runs.command("logs")(command(runs.logs))
_runs.command("usage")(command(usage.usage))
_runs.command("pause")(command(runs.pause))
_runs.command("resume")(command(runs.resume))
_runs.command("cancel")(command(runs.cancel))
_runs.command("retry")(command(runs.retry))
_runs.command("rerun")(command(runs.rerun))
_runs.command("fork")(command(runs.fork))
_runs.command("bulk")(command(runs.bulk))
app.add_typer(_runs, name="runs")

_functions.command("list")(command(functions.list_functions))
_functions.command("start")(command(functions.start))
_functions.command("adopt")(command(functions.adopt))
app.add_typer(_functions, name="functions")

_flows.command("list")(command(flows.list_flows))
_flows.command("show")(command(flows.show))
_flows.command("publish")(command(flows.publish))
app.add_typer(_flows, name="flows")

_handlers.command("list")(command(handlers.list_handlers))
_handlers.command("register")(command(handlers.register))
_handlers.command("remove")(command(handlers.remove))
_handlers.command("test")(command(handlers.try_out))
app.add_typer(_handlers, name="handlers")

_lists.command("show")(command(lists.show))
_lists.command("pause")(command(lists.pause))
_lists.command("resume")(command(lists.resume))
_lists.command("drain")(command(lists.drain))
_lists.command("policy")(command(lists.policy))
_lists.command("limit")(command(lists.limit))
_lists.command("desired")(command(lists.desired))
app.add_typer(_lists, name="lists")

_schedules.command("add")(command(schedules.add))
_schedules.command("edit")(command(schedules.edit))
_schedules.command("list")(command(schedules.list_schedules))
_schedules.command("show")(command(schedules.show))
_schedules.command("preview")(command(schedules.preview))
_schedules.command("pause")(command(schedules.pause))
_schedules.command("resume")(command(schedules.resume))
_schedules.command("remove")(command(schedules.remove))
_schedules.command("run-now")(command(schedules.run_now))
_schedules.command("backfill")(command(schedules.backfill))
app.add_typer(_schedules, name="schedules")

_external.command("list")(command(external.list_jobs))
_external.command("show")(command(external.show))
_external.command("poll-now")(command(external.poll_now))
_external.command("cancel")(command(external.cancel))
_external.command("rebuild")(command(external.rebuild))
app.add_typer(_external, name="external")

_approvals.command("list")(command(approvals.list_approvals))
_approvals.command("show")(command(approvals.show))
_approvals.command("approve")(command(approvals.approve))
_approvals.command("deny")(command(approvals.deny))
app.add_typer(_approvals, name="approvals")

_watchers.command("add")(command(watchers.add))
_watchers.command("edit")(command(watchers.edit))
_watchers.command("list")(command(watchers.list_watchers))
_watchers.command("show")(command(watchers.show))
_watchers.command("seen")(command(watchers.seen))
_watchers.command("pause")(command(watchers.pause))
_watchers.command("resume")(command(watchers.resume))
_watchers.command("remove")(command(watchers.remove))
_watchers.command("look")(command(watchers.look))
app.add_typer(_watchers, name="watchers")
_objectives.command("add")(command(objectives.add))
_objectives.command("list")(command(objectives.list_objectives))
_objectives.command("show")(command(objectives.show))
_objectives.command("approve")(command(objectives.approve))
_objectives.command("block")(command(objectives.block))
_objectives.command("unblock")(command(objectives.unblock))
_objectives.command("edit")(command(objectives.edit))
_objectives.command("board")(command(objectives.board))
_objectives.command("claims")(command(objectives.claims))
_topology.command("check")(command(topology.check))
_objectives.add_typer(_topology, name="topology")
app.add_typer(_objectives, name="objectives")

_dlq.command("list")(command(dlq.list_letters))
_dlq.command("show")(command(dlq.show))
_dlq.command("retry")(command(dlq.retry))
_dlq.command("discard")(command(dlq.discard))
app.add_typer(_dlq, name="dlq")

_store.command("migrate")(command(store.migrate))
_store.command("verify")(command(store.verify))
_store.command("info")(command(store.info))
_store.command("prune")(command(store_upkeep.prune))
_store.command("keep")(command(store_upkeep.keep))
_store.command("backup")(command(store_upkeep.backup))
app.add_typer(_store, name="store")

_token.command("create")(command(token.create))
_token.command("list")(command(token.list_tokens))
_token.command("revoke")(command(token.revoke))
app.add_typer(_token, name="token")
