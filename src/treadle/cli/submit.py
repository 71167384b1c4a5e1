"""`treadle submit`: start a run and leave it to the workers; wait for its outputs if asked to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.tasks import WAIT_LIMIT
from treadle.api.wire import to_builtins
from treadle.cli.command import option
from treadle.cli.exits import FAILED, WaitTimedOut, tell_error
from treadle.cli.format import plain, pretty
from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.sources import Places
from treadle.cli.start_run import (
    InputOption,
    InputsOption,
    LenientOption,
    Plan,
    Wanted,
    WorkflowOption,
    tell_what_is_missing,
)
from treadle.engine import Engine
from treadle.model.errors import InvalidInput, RunCanceled, RunFailed
from treadle.model.names import DEFAULT_LIST, check_key, check_name
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.runs import RunOutputs


async def submit(
    session: Session,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: InputOption = None,
    whole: InputsOption = None,
    idempotency_key: Annotated[str | None, option(metavar="KEY", help="A second start with it names the first run")] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list that workers choose")] = DEFAULT_LIST,
    priority: Annotated[int, option(help="Smaller runs first")] = 0,
    version: Annotated[int | None, option("--version", metavar="N", help="A version of the flow; default: the newest")] = None,
    lenient: LenientOption = False,
    wait: Annotated[bool, option("--wait", help="Wait for the outputs and print them; exit 1 if it failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Wait at most that long; exit 6 after it")] = None,
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

    if session.chosen.remote:
        check(Engine("memory://", settings=session.settings))  # what is wrong with files is said here
    async with session.api(migrate=not wanted.is_stored, first=check) as api:
        started = await wanted.start(
            api,
            plans[0] if plans else None,
            idempotency_key=idempotency_key,
            task_list=task_list,
            priority=priority,
        )
        if not session.json:
            tell_what_is_missing(started)
        if wait or limit is not None:
            ended = await end_of(api, started.id, limit)
            more = {"created": started.created, "missing_handlers": started.missing_handlers}
            show_outputs(session, to_builtins(await api.runs.get(started.id)) | more, ended)
            return
    said = f"Started {started.workflow} as {started.id}" if started.created else f"A run has that key already: {started.id}"
    session.show(started, lambda: plain(said))


async def end_of(api: Api, run_id: str, limit: float | None) -> RunOutputs:
    """What the run came to, once it has ended."""
    left = math.inf if limit is None else limit
    while True:
        part = min(left, WAIT_LIMIT)
        ended = await api.runs.outputs(run_id, wait_for=part)
        left -= part
        if ended.finished:
            return ended
        if left <= 0:
            raise WaitTimedOut(f"Run {run_id} has not ended after {limit:g} s; it goes on. `treadle why {run_id}` says more.")


def failure_of(ended: RunOutputs) -> RunFailed | RunCanceled | None:
    """How the run failed; None if it completed."""
    message = (ended.error or {}).get("message", "")
    match ended.state:
        case "failed":
            return RunFailed(ended.ended_as, ended.failed_step_id, message)
        case "canceled":
            return RunCanceled(f"Run {ended.ended_as} was canceled: {message}")
        case _:
            return None


def show_outputs(session: Session, value: dict[str, Json], ended: RunOutputs) -> None:
    """The outputs on stdout, alone, so that they can be piped; a failure on stderr, with what can be done, and exit code 1."""
    outputs = ended.outputs
    if value["kind"] == "function" and outputs is not None:
        outputs = outputs.get("result")
    value = value | {"outputs": outputs}
    failed = failure_of(ended)
    if failed is None:
        session.show(value, lambda: pretty(outputs))
        return
    if session.json:
        session.show(value, lambda: plain(""))
    tell_failed(session, str(value["id"]), failed)
    raise Exit(FAILED)


def tell_failed(session: Session, run_id: str, failed: RunFailed | RunCanceled) -> None:
    """That the run failed, on stderr, and for people what can be done."""
    hint = f" `treadle runs show {run_id}` shows the steps, `treadle runs retry {run_id}` goes on where it failed."
    message = str(failed).rstrip()
    stop = "" if message.endswith((".", "!", "?")) else "."
    tell_error(
        failed.code, message if session.json or isinstance(failed, RunCanceled) else message + stop + hint, as_json=session.json
    )
