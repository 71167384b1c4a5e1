"""Prompts: the language on one page, write a flow, fix a flow, debug a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from treadle.api.contract import Doc, parameters_of
from treadle.api.flows import SourceText
from treadle.interfaces.mcp.advice import Advisor
from treadle.interfaces.mcp.answers import error_line, shown, text_of
from treadle.interfaces.mcp.flows import BRIEF, MAIN, Finding, found
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.resources import refused
from treadle.model.errors import TreadleError

_HANDLERS = 100
_STEPS = 10
_LINES = 30

Telling = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class Prompt:
    """A prompt that a person can give to a model."""

    name: str
    body: Telling

    @property
    def description(self) -> str:
        """Its purpose."""
        return " ".join((self.body.__doc__ or "").split())

    @property
    def arguments(self) -> list[wire.PromptArgument]:
        """Its arguments, which are texts."""
        return [
            wire.PromptArgument(name=each.name, description=each.doc.text, required=each.required)
            for each in parameters_of(self.body)
        ]

    def listed(self) -> wire.Prompt:
        """Its description for clients."""
        return wire.Prompt(name=self.name, description=self.description, arguments=self.arguments)

    async def tell(self, context: RequestContext, given: Mapping[str, str], advisor: Advisor) -> wire.GetPromptResult:
        """The message; raises a protocol error for invalid arguments and for errors of the engine."""
        known = {each.name: each.required for each in self.arguments}
        missing = [name for name, required in known.items() if required and not given.get(name)]
        unknown = sorted(set(given) - set(known))
        if missing or unknown:
            what = f"needs {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
            raise MCPError(wire.INVALID_PARAMS, f"The prompt {self.name} {what}.")
        try:
            text = await self.body(context, **given)
        except TreadleError as error:
            raise refused(error, advisor) from error
        if not text.startswith(BRIEF):  # which is for shells, too
            text = "```".join(part if fenced % 2 else advisor.text(part) for fenced, part in enumerate(text.split("```")))
        message = wire.PromptMessage(role="user", content=wire.TextContent(text=text))
        return wire.GetPromptResult(description=self.description, messages=[message])


def prompt(body: Telling) -> Prompt:
    """Make a prompt of a function."""
    return Prompt(body.__name__, body)


@prompt
async def afl_language(context: RequestContext) -> str:
    """AFL on one page: how to write a flow, common mistakes, and an example of each construct."""
    return BRIEF


@prompt
async def afl_write(
    context: RequestContext,
    goal: Annotated[str, Doc("The purpose of the flow")],
    namespace: Annotated[str, Doc("The namespace of the flow")] = "",
) -> str:
    """Write a flow for a goal: AFL on one page, the handlers of live workers, and the steps to follow."""
    fleet = await context.api.servers.fleet()
    names = [each.name for each in fleet.handlers][:_HANDLERS]
    known = "\n".join(f"- {name}" for name in names) or "- none: steps of event facets wait until somebody completes them"
    where = f" Use the namespace `{namespace}`." if namespace else ""
    return f"""{BRIEF}

# Goal

{goal}

Write one AFL source for this goal.{where} Live workers have these handlers; an event facet uses the handler of its qualified
name:

{known}

Steps:

1. Write the source. Declare the parameters and returns of each event facet; add nothing that the goal does not require.
2. Call `afl_validate`. Fix every error by its line, column and hint, and repeat until the source is valid.
3. Call `afl_execute_workflow` with test inputs. If the run waits, `why` and `run_steps` give the reason: an approval
   (`approval_list`) or a missing handler.
4. To keep the flow, call `flow_publish`; `run_start` then starts it by name.
"""


@prompt
async def afl_fix(context: RequestContext, source: Annotated[str, Doc("The AFL that does not compile")]) -> str:
    """Fix AFL that does not compile: its errors with lines and hints, and AFL on one page."""
    sources = [SourceText(MAIN, source)]
    findings = found((await context.api.flows.validate(sources, strict=True)).diagnostics, sources)
    errors = "\n".join(_told(each) for each in findings) or "It compiles without warnings."
    return f"""{BRIEF}

# Errors

```afl
{source.rstrip()}
```

{errors}

Fix the source: change only what is necessary and preserve its meaning. Then call `afl_validate` with the complete source until it
is valid.
"""


@prompt
async def run_debug(context: RequestContext, run_id: Annotated[str, Doc("The run's id")]) -> str:
    """Debug a run that failed or does not progress: its error, failed steps, open tasks, log, source, and possible actions."""
    run = await context.api.runs.get(run_id)
    failed = (await context.api.steps.list(run.id, state=["failed"], limit=_STEPS)).steps
    tasks = (await context.api.runs.tasks(run.id, limit=_STEPS)).tasks
    lines = (await context.api.runs.logs(run.id, limit=_LINES)).lines
    source = "" if run.kind != "workflow" else "\n".join(each.text for each in (await context.api.flows.get(run.flow_id)).sources)
    steps = [
        f"- {each.path} ({each.id}): {each.error.message if each.error else each.state}; given {text_of(shown(each.params))}"
        for each in failed
    ]
    waiting = [
        f"- {each.name} ({each.id}): {each.state}, attempt {each.attempt}; {error_line(each.error) or 'no error'}" for each in tasks
    ]
    log = [f"- {each.level} {each.path or ''}: {each.message}" for each in lines[-_LINES:]]
    return f"""# The run {run.id} of {run.workflow} is {run.state}

Reason: {run.why.text}

Error: {error_line(run.error) or "none"}

Inputs: {text_of(shown(run.inputs))}

Failed steps:
{_list(steps)}

Live tasks:
{_list(waiting)}

Last log lines:
{_list(log)}

{f"Source:{chr(10)}{chr(10)}```afl{chr(10)}{source.rstrip()}{chr(10)}```" if source else "It is a run of a durable function."}

Find the root cause and state it before you change anything. `step_show` returns a step's values and log lines, `why` the reason for
a state. Then choose:

- the cause has passed or was fixed elsewhere: `afl_retry_step` retries the failed step and continues the run;
- the step's result is known: `afl_continue_step` completes a waiting step; `afl_fail_step` fails one;
- the flow is wrong: fix the source, `afl_validate`, `flow_publish`, and start a new run; a run keeps its flow;
- no worker has the handler: `worker_start` serves a task list with the handlers of this process; the run waits until then.
"""


def _told(each: Finding) -> str:
    hint = f"\n  hint: {each.hint}" if each.hint else ""
    return f"- line {each.line}, column {each.column}: {each.severity}: {each.message}\n  {each.text.strip()}{hint}"


def _list(lines: list[str]) -> str:
    return "\n".join(lines) or "- none"


PROMPTS_BY_NAME = {each.name: each for each in (afl_language, afl_write, afl_fix, run_debug)}
