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
from treadle.interfaces.mcp.flows import BRIEF, MAIN, Finding, findings_of
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
            wire.PromptArgument(name=parameter.name, description=parameter.doc.text, required=parameter.required)
            for parameter in parameters_of(self.body)
        ]

    def listed(self) -> wire.Prompt:
        """Its description for clients."""
        return wire.Prompt(name=self.name, description=self.description, arguments=self.arguments)

    async def render(self, context: RequestContext, arguments: Mapping[str, str], advisor: Advisor) -> wire.GetPromptResult:
        """The message; raises a protocol error for invalid arguments and for errors of the engine."""
        requirements = {argument.name: argument.required for argument in self.arguments}
        missing = [name for name, required in requirements.items() if required and not arguments.get(name)]
        unknown = sorted(set(arguments) - set(requirements))
        if missing or unknown:
            what = f"needs {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
            raise MCPError(wire.INVALID_PARAMS, f"The prompt {self.name} {what}.")
        try:
            text = await self.body(context, **arguments)
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
    names = [handler.name for handler in fleet.handlers][:_HANDLERS]
    handler_list = "\n".join(f"- {name}" for name in names) or "- none: steps of event facets wait until somebody completes them"
    where = f" Use the namespace `{namespace}`." if namespace else ""
    return f"""{BRIEF}

# Goal

{goal}

Write one AFL source for this goal.{where} Live workers have these handlers; an event facet uses the handler of its qualified
name:

{handler_list}

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
    findings = findings_of((await context.api.flows.validate(sources, strict=True)).diagnostics, sources)
    errors = "\n".join(_finding_text(finding) for finding in findings) or "It compiles without warnings."
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
    source = (
        ""
        if run.kind != "workflow"
        else "\n".join(source_text.text for source_text in (await context.api.flows.get(run.flow_id)).sources)
    )
    steps = [
        f"- {step.path} ({step.id}): {step.error.message if step.error else step.state}; given {text_of(shown(step.params))}"
        for step in failed
    ]
    waiting = [
        f"- {task.name} ({task.id}): {task.state}, attempt {task.attempt}; {error_line(task.error) or 'no error'}" for task in tasks
    ]
    log = [f"- {line.level} {line.path or ''}: {line.message}" for line in lines[-_LINES:]]
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


def _finding_text(finding: Finding) -> str:
    hint = f"\n  hint: {finding.hint}" if finding.hint else ""
    return f"- line {finding.line}, column {finding.column}: {finding.severity}: {finding.message}\n  {finding.text.strip()}{hint}"


def _list(lines: list[str]) -> str:
    return "\n".join(lines) or "- none"


PROMPTS_BY_NAME = {prompt.name: prompt for prompt in (afl_language, afl_write, afl_fix, run_debug)}
