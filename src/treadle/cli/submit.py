"""`treadle submit`: start a run and leave it to the workers; wait for its outputs if asked to."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli.exits import FAILED, WaitTimedOut, tell_error
from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.shapes import run_json
from treadle.cli.sources import Places
from treadle.cli.starting import InputOption, InputsOption, LenientOption, Plan, Wanted, WorkflowOption, preflight
from treadle.cli.words import plain, pretty
from treadle.model.errors import InvalidInput, RunCanceled, RunFailed
from treadle.model.names import DEFAULT_LIST, check_key, check_name
from treadle.model.values import Json
from treadle.wiring.engine import Engine


async def submit(
    session: Session,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: InputOption = None,
    whole: InputsOption = None,
    idempotency_key: Annotated[str | None, typer.Option(metavar="KEY", help="A second start with it names the first run")] = None,
    task_list: Annotated[str, typer.Option("--list", metavar="LIST", help="The task list that workers choose")] = DEFAULT_LIST,
    priority: Annotated[int, typer.Option(help="Smaller runs first")] = 0,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="A version of the flow; default: the newest")
    ] = None,
    lenient: LenientOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the outputs and print them; exit 1 if it failed")] = False,
    wait_for: Annotated[str | None, typer.Option(metavar="DURATION", help="Wait at most that long; exit 6 after it")] = None,
) -> None:
    """Start a run of a workflow; when this returns, it is durable, and workers do it."""
    limit = seconds(wait_for, "--wait-for")
    if limit is not None and limit < 0:
        raise InvalidInput("--wait-for must be zero or more.")
    check_name(task_list, "task list")
    if idempotency_key is not None:
        check_key(idempotency_key, "idempotency key")
    wanted = Wanted(places, workflow, pairs or (), whole, lenient, version)
    if version is not None and not wanted.is_stored:
        raise InvalidInput("--version is for flows in the store, not for files.")
    plans: list[Plan] = []

    def check(engine: Engine) -> None:
        if not wanted.is_stored:
            plans.append(wanted.plan_files(engine))

    async with session.engine(migrate=not wanted.is_stored, first=check) as engine:
        plan = plans[0] if plans else await wanted.plan(engine)
        missing = await preflight(session, engine, plan, task_list, works_here=False)
        run = await engine.start_run(
            plan.flow,
            plan.workflow.qualified_name,
            plan.inputs,
            lenient=lenient,
            idempotency_key=idempotency_key,
            task_list=task_list,
            priority=priority,
        )
        started: dict[str, Json] = {"created": run.created, "missing_handlers": list(missing)}
        if wait or limit is not None:
            await wait_for_outputs(session, engine, run.id, limit, started)
            return
        value = run_json(await engine.run_reads.get_run(run.id)) | started
    name = plan.workflow.qualified_name
    said = f"Started {name} as {run.id}" if run.created else f"A run has that key already: {run.id}"
    session.show(value, lambda: plain(said))


async def wait_for_outputs(session: Session, engine: Engine, run_id: str, limit: float | None, more: dict[str, Json]) -> None:
    """Wait, then show the outputs alone, so that they can be piped; how it failed goes to stderr."""
    failed: RunFailed | RunCanceled | None = None
    outputs: dict[str, Json] | None = None
    try:
        outputs = await engine.run_result(run_id, timeout=limit)
    except TimeoutError:
        raise WaitTimedOut(f"Run {run_id} has not ended after {limit:g} s; it goes on. `treadle why {run_id}` says more.") from None
    except (RunFailed, RunCanceled) as error:
        failed = error
    value = run_json(await engine.run_reads.get_run(run_id)) | {"outputs": outputs} | more
    show_outputs(session, value, failed)


def show_outputs(session: Session, value: dict[str, Json], failed: RunFailed | RunCanceled | None) -> None:
    """The outputs on stdout; a failure on stderr, with what can be done, and exit code 1."""
    if failed is None:
        session.show(value, lambda: pretty(value["outputs"]))
        return
    if session.json:
        session.show(value, lambda: plain(""))
    tell_failed(session, str(value["id"]), failed)
    raise typer.Exit(FAILED)


def tell_failed(session: Session, run_id: str, failed: RunFailed | RunCanceled) -> None:
    """That the run failed, on stderr, and for people what can be done."""
    hint = f" `treadle runs show {run_id}` shows the steps, `treadle runs retry {run_id}` goes on where it failed."
    message = str(failed).rstrip()
    stop = "" if message.endswith((".", "!", "?")) else "."
    tell_error(
        failed.code, message if session.json or isinstance(failed, RunCanceled) else message + stop + hint, as_json=session.json
    )
