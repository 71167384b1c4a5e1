"""Prompts: the language in brief, write a flow, mend one, find out why a run failed."""

from __future__ import annotations

from typing import Annotated

from treadle.api.contract import Doc
from treadle.api.flows import SourceText
from treadle.mcp.answers import text_of
from treadle.mcp.brief import BRIEF
from treadle.mcp.language import MAIN, Finding, found
from treadle.mcp.prompt import prompt
from treadle.mcp.request_context import RequestContext
from treadle.mcp.truncate import error_line, last, shown

_HANDLERS = 100
_STEPS = 10
_LINES = 30


@prompt
async def afl_language(desk: RequestContext) -> str:
    """AFL in brief: how a flow is written, what is easy to get wrong, and examples of each construct."""
    return BRIEF


@prompt
async def afl_write(
    desk: RequestContext,
    goal: Annotated[str, Doc("What the flow is to do")],
    namespace: Annotated[str, Doc("The namespace to write it in")] = "",
) -> str:
    """Write a flow for a goal: the language in brief, the handlers that live workers have, and how to go about it."""
    fleet = await desk.api.servers.fleet()
    names = [each.name for each in fleet.handlers][:_HANDLERS]
    known = (
        "\n".join(f"- {name}" for name in names)
        or "- none: whatever event facets the flow has, their steps wait until somebody answers"
    )
    where = f" Write it in the namespace `{namespace}`." if namespace else ""
    return f"""{BRIEF}

# What is wanted

{goal}

Write one AFL source for that.{where} Live workers have these handlers; an event facet finds its handler by its qualified name:

{known}

Go about it like this:

1. Write the source. Say what each event facet needs and returns; leave out what the goal does not ask for.
2. Call `afl_validate` with it. Mend every error from its line, column and hint, and call it again until it is valid.
3. Call `afl_execute_workflow` with inputs that try it out. If it waits, `why` and `run_steps` say for what: an approval
   (`approval_list`), or a handler that nobody has.
4. If it is to stay, call `flow_publish`; `run_start` then starts it by name.
"""


@prompt
async def afl_fix(desk: RequestContext, source: Annotated[str, Doc("The AFL that does not compile")]) -> str:
    """Mend AFL that does not compile: its errors with lines and hints, and the language in brief."""
    sources = [SourceText(MAIN, source)]
    findings = found((await desk.api.flows.validate(sources)).diagnostics, sources)
    errors = "\n".join(_told(each) for each in findings) or "It compiles, and there is nothing to warn of."
    return f"""{BRIEF}

# What is wrong

```afl
{source.rstrip()}
```

{errors}

Mend the source: change only what is wrong, and keep what it means. Then call `afl_validate` with the whole, until it is valid.
"""


@prompt
async def run_debug(desk: RequestContext, run_id: Annotated[str, Doc("The run's id")]) -> str:
    """Find out why a run failed or does not go on: its error, failed steps, open tasks, log and source, and what can be done."""
    run = await desk.api.runs.get(run_id)
    failed = (await desk.api.steps.list(run.id, state=["failed"], limit=_STEPS)).steps
    tasks = (await desk.api.runs.tasks(run.id, limit=_STEPS)).tasks
    lines = (await desk.api.runs.logs(run.id, limit=_LINES)).lines
    source = "" if run.kind != "workflow" else "\n".join(each.text for each in (await desk.api.flows.get(run.flow_id)).sources)
    steps = [
        f"- {each.path} ({each.id}): {each.error.message if each.error else each.state}; given {text_of(shown(each.params))}"
        for each in failed
    ]
    waiting = [
        f"- {each.name} ({each.id}): {each.state}, attempt {each.attempt}; {error_line(each.error) or 'no error'}" for each in tasks
    ]
    log = [f"- {each.level} {each.path or ''}: {each.message}" for each in last(lines, _LINES)]
    return f"""# The run {run.id} of {run.workflow} is {run.state}

Why: {run.why.text}

Error: {error_line(run.error) or "none"}

Inputs: {text_of(shown(run.inputs))}

Failed steps:
{_list(steps)}

Tasks that have not ended:
{_list(waiting)}

The last lines of its log:
{_list(log)}

{f"Its source:{chr(10)}{chr(10)}```afl{chr(10)}{source.rstrip()}{chr(10)}```" if source else "It is a run of a durable function."}

Find the first cause, and say what it is before you change anything. `step_show` has a step's values and lines, `why` says what
something waits for. Then, as fits:

- the cause has passed or was put right outside: `afl_retry_step` does the failed step again, and the run goes on from there;
- the step's result is known: `afl_continue_step` gives it to a step that waits; `afl_fail_step` fails one;
- the flow is wrong: mend the source, `afl_validate`, `flow_publish`, and start anew; a run keeps the flow that it was started with;
- nobody has the handler: a worker with it must be started; the run waits until then.
"""


def _told(each: Finding) -> str:
    hint = f"\n  hint: {each.hint}" if each.hint else ""
    return f"- line {each.line}, column {each.column}: {each.severity}: {each.message}\n  {each.text.strip()}{hint}"


def _list(lines: list[str]) -> str:
    return "\n".join(lines) or "- none"


PROMPTS = (afl_language, afl_write, afl_fix, run_debug)
