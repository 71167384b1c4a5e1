"""Write the generated parts of the documentation: `python -m docs.generate`, or `--check` to compare only.

Generates whole reference pages, embeds files in code blocks that follow a comment `<!-- snippet: path -->`, or one section
of a file with `<!-- snippet: path#name -->` (the lines after `# --- name ---`, up to the next such line), and fills blocks
between `<!-- python: name -->` and `<!-- /python -->` from docstrings (`docs/python_reference.py`), and the block after
`<!-- grammar -->` from the grammar of AFL (`docs/grammar.py`), and the block between `<!-- sql features -->` and
`<!-- /sql features -->` from the SQL of the PostgreSQL store (`docs/sql_features.py`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from build_tools.wrap import wrapped
from docs.grammar import with_grammar
from docs.python_reference import with_python
from docs.sql_features import with_sql_features

import treadle
from treadle.interfaces.cli.app import COMMANDS, REPEATS
from treadle.interfaces.cli.command import COMMON, leaves, make
from treadle.interfaces.cli.messages import EXIT_CODES, exit_code_of
from treadle.lang import RULES, compile_sources
from treadle.model import errors, states
from treadle.model.errors import TreadleError

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "treadle"
_NOTE = "<!-- Made by `python -m docs.generate`; edit the code or docs/generate.py, not this page. -->"
_SNIPPET = re.compile(r"<!-- snippet: (?P<path>\S+) -->\n```(?P<lang>\w+)\n(?P<code>.*?)```\n", re.S)

PROBLEMS = {
    "handler_error": "The handler raised. The task is retried as its retry policy allows.",
    "step_error": "A step of a durable function raised. It is retried as the step's retry policy allows.",
    "function_error": "A durable function raised. Its run fails; `treadle runs retry` continues it from there.",
    "invalid_result": "A step or a function returned a value that is not JSON or is too large. Final.",
    "nondeterministic": "The code of a durable function deviates from the recorded steps of its run. It is retried with growing "
    "delays until the code matches.",
    "type_changed": "A value that a run of a durable function recorded, such as its payload, does not match its type in the code "
    "of now. It is retried with growing delays until the code accepts the value.",
    "non_retryable": "The handler raised `NonRetryable` without a code of its own.",
    "timeout": "The attempt exceeded its timeout and was stopped. It counts as a failure, so the policy applies.",
    "deadline_exceeded": "The task's deadline passed before or during its execution. Final.",
    "takeovers_exhausted": "Several workers in a row lost the task without settling it: it may be killing them. Final.",
    "pollers_lost": "Several workers in a row were lost while they polled an external job. It does not fail; its polls back off.",
    "unexpected_result": "The handler returned neither a dict, nor None, nor an outcome. Final.",
    "evaluator_error": "A run could not be advanced; the result of the step is kept. This is a bug in Treadle.",
    "no_handler": "No server has a handler for it, and its task list is configured to ignore such tasks.",
    "canceled": "An operator or a caller canceled it.",
    "failed": "It failed, and the report of the failure had no code.",
    "reserved_key": "The payload of an agent's task has a key that starts with an underscore; only runners add such keys.",
    "value_lost": "A value that the task needs is no longer in the store, because its owner was pruned.",
    "budget_exhausted": "A workorder's handler did not finish within its budget. Found in its output bundle.",
    "import_failed": "The module of a registered handler is missing or cannot be imported; the message contains the cause.",
    "import_timeout": "The import of a registered handler's module did not finish in time.",
    "approval_denied": "A person denied the approval that the task waited for. Final, regardless of its policy.",
    "approval_expired": "The approval that the task waited for expired without a decision. Final, regardless of its policy.",
    "approval_lost": "The approval that the task waited for is no longer in the store. Retry the task to ask again.",
    "effect_unavailable": "The handler cannot use effects, or called the wrong variant; the message explains it. Final.",
    "invalid_effect_response": "An effect was performed, but its response is not JSON or too large. Final: never repeated.",
    "webhook_unsigned": "`TREADLE_WEBHOOK_SECRET` is not set; nothing is sent unsigned. Final.",
    "webhook_not_allowed": "An approval names a webhook of its own that `TREADLE_WEBHOOK_ALLOW` does not allow. Final.",
    "webhook_not_set": "`TREADLE_APPROVAL_WEBHOOK` is missing or unusable in the process that sends the notification. Final.",
    "specialist_raised": "A specialist's `start` raised. Final, regardless of the task's policy; an operator may retry it.",
    "specialist_failed": "A specialist's `start` returned None: it could not submit the job. Final.",
    "specialist_unavailable": "A specialist's task was executed without an engine. Final.",
    "poll_not_supported": "A handler without `poll` returned a handle. Final; the job is not polled.",
    "external_production_failed": "The external service reported that the job failed, without a code. Final.",
    "external_job_lost": "The external service no longer knows the job. Final.",
    "external_outcome_unknown": "A worker was lost while it submitted a job, and its specialist has no `find`: it is unknown "
    "whether the service has the job. Check there, then retry or cancel the task.",
    "specialist_unregistered": "No live worker has had the specialist that polls the job for a while. Final.",
    "poll_returned_unexpected_type": "A poll returned neither a production, nor a handle, nor a failure. Final.",
    "empty_external_job_id": "A specialist returned a handle without the service's job id. Final.",
    "invalid_polling_interval": "A specialist returned a handle whose interval is not more than 0 and at most a day. Final.",
    "invalid_progress_hint": "A specialist returned a handle with a hint that is not text. Final if returned by `start`.",
    "unstorable_result": "The outcome of an attempt cannot be stored; the message contains the cause. Final.",
    "progress_hint_too_long": "A specialist returned a handle with a hint of more than 4 KB. Final if returned by `start`.",
    "invalid_progress": "A specialist returned a handle with a progress outside 0 to 1. Final if returned by `start`.",
    "invalid_error_code": "A specialist returned a failure whose code is not a short text; the job has failed.",
    "entrypoint_missing": "The module of a registered handler has no function of that name.",
}
"""Codes of failed tasks that are not in the error tree."""

STEP_ERRORS = {
    "evaluation_error": "An expression has no value: a wrong type, a missing key, division by zero.",
    "assertion_failed": "A `sys.assert` was false.",
    "not_started": "Another item of a `foreach` with `failFast` had failed before this could start.",
    "approval_denied": "A person denied the request of a `sys.approval`, or of a handler that asked.",
    "approval_expired": "Nobody decided such a request in time.",
    "foreach_error": "The value that a `foreach` iterates over is not a list.",
    "too_deep": "Steps are nested more than 100 deep (`TREADLE_RUN_DEPTH`), probably by infinite recursion. Stops the run, also "
    "if there is a `catch`.",
    "too_many_rows": "The run has more than 1,000,000 steps, blocks and items (`TREADLE_RUN_ROWS`). Stops the run, also if there "
    "is a `catch`; except for a `foreach` over more elements than that.",
    "value_too_large": "A computed value, or the parameters of a step together, would take more than 16 MiB as JSON (shared parts "
    "count each time) or are nested more than 500 deep, or one advance of the run computes more than 512 MiB. Pass references to "
    "large data.",
}
"""Values of `error_type` in a `catch`, besides the class (or code) of the error that a handler or script raised."""

REASONS = {
    "approval": "it waits for a person's decision",
    "backoff": "it has failed, and its next attempt is due later",
    "delayed": "it is not due yet",
    "suspended": "(functions) the whole function waits: for time, signals, children or people",
    "nondeterministic": "(functions) the code deviates from the recorded steps; a rollback fixes it",
    "type_changed": "(functions) a recorded value does not match its type in the code; a default or a rollback fixes it",
    "finished_canceled": "it was canceled",
    "finished_completed": "it is done",
    "finished_failed": "it failed permanently",
    "finished_ignored": "no server had a handler for it, and its list ignores such tasks",
    "list_paused": "its task list is paused",
    "next_poll": "an external job is running",
    "no_worker": "no live worker has a handler for it",
    "objective": "(objectives) the text names the reason: its approval, a blocker, or a role",
    "over_limit": "other tasks use up its limit",
    "not_advanced": "(runs) the result of a step could not be processed; it is kept, and the text contains the error",
    "owner_lost": "its worker is dead, or has missed its heartbeats; another takes over immediately, or when the lease ends",
    "paused": "an operator or its handler paused it, with the reason if one was given",
    "will_fail": "(a run) a step failed and no `catch` handles it: what is in progress ends, then the run fails",
    "rate": "the rate limit of its handler is exhausted for now",
    "ready": "a worker can claim it now",
    "run_paused": "its run is paused",
    "running": "a worker executes it",
    "steps": "(runs) several of its steps are running or waiting",
    "stuck": "(runs) none of its tasks is live; `treadle runs resume` repairs that",
}
"""Codes that `treadle why` returns."""


# --- states ---


def states_page() -> str:
    """The state machines as diagrams and tables."""
    parts = [
        "# States",
        _NOTE,
        "Every durable entity has a state machine; `treadle/model/states.py` defines all of them. Each transition "
        "writes a row of the log in the same commit as the row it changes; `treadle store verify` checks every history against "
        "these tables.",
        "`running` and `paused` of a task are shown but not stored: a task runs while it has an owner, and is paused while it is "
        "held. Transitions marked *held* need that owner: only the holder of the claim makes them, or its expiry (`expire`).",
    ]
    for machine in states.MACHINES.values():
        parts += [f"## {machine.entity.capitalize()}", diagram(machine)]
        parts += [
            f"### {machine.entity} `{state}`{_ending(machine, state)}\n\n{_transitions(machine, state)}" for state in machine.states
        ]
    shown = [
        ("running", "has an owner: a worker executes it"),
        ("paused", "is blocked: by an operator, its run, its list or a limit"),
    ]
    parts.append("## Shown states of a task\n\n" + "\n".join(f"- `{name}`: {text}." for name, text in shown))
    parts.append(
        "## Shown states of a step\n\nA run that is canceled abandons its steps in place: their rows keep the states they had, "
        "so that a fork can continue from them. A step that is still open when its run ends, and one that did not start because "
        "the run cannot succeed, is *shown* as `canceled`: nothing executes it."
    )
    reasons = [(name, value) for name, value in vars(states.BlockReason).items() if name.isupper()]
    parts.append("## Block reasons\n\n" + _table(["reason", "bit"], [[f"`{name.lower()}`", str(value)] for name, value in reasons]))
    return _page(parts)


def diagram(machine: states.StateMachine) -> str:
    """A Mermaid state diagram with every transition of the table, and no other."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {machine.initial}"]
    edges: dict[tuple[str, str], list[str]] = {}
    for (source, transition), target in machine.transitions.items():
        edges.setdefault((source, target), []).append(transition)
    lines += [f"    {source} --> {target}: {', '.join(transitions)}" for (source, target), transitions in edges.items()]
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.final]
    return "\n".join([*lines, "```"])


def _ending(machine: states.StateMachine, state: str) -> str:
    return " (final)" if state in machine.final else ""


def _transitions(machine: states.StateMachine, state: str) -> str:
    rows = []
    for (source, transition), target in machine.transitions.items():
        if source == state:
            held = " *(held)*" if machine is states.TASK and transition in states.HELD_TRANSITIONS else ""
            rows.append([f"`{transition}`{held}", f"`{target}`"])
    return _table(["transition", "leads to"], rows) if rows else "No transition leads out of it."


# --- errors ---


def errors_page() -> str:
    """Every error class with a code, every code of a failed task, and what `why` answers."""
    parts = [
        "# Error codes",
        _NOTE,
        "Codes are stable; messages are for people and may change. In Python each is the attribute `code` of an error of the "
        "class shown; the command line prints `treadle: code: message` (or a JSON object with `--json`) and exits with the "
        "number shown.",
        "## Raised",
        _table(["code", "class", "is a", "exit", "meaning"], [row for each in error_classes() for row in _error_rows(each)]),
        "## Of failed tasks",
        "A failed task has an error with a code: that of the exception if it is one of the above, what the handler chose "
        '(`raise NonRetryable("...", "declined")`), or one of these.',
        _table(["code", "meaning"], [[f"`{code}`", text] for code, text in PROBLEMS.items()]),
        "## Of failed steps",
        "A `catch` sees the message as `error`, and as `error_type` the name of the exception's class, or its code if there was "
        "none, or:",
        _table(["error_type", "meaning"], [[f"`{code}`", text] for code, text in STEP_ERRORS.items()]),
        "## Why",
        "`treadle why ID` and `Engine.why` answer with a code and a line.",
        _table(["code", "meaning"], [[f"`{code}`", text] for code, text in REASONS.items()]),
    ]
    return _page(parts)


def error_classes() -> list[type[TreadleError]]:
    """All classes of the tree that have a code of their own, parents first."""
    for module in pkgutil.walk_packages(treadle.__path__, "treadle."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def walk(each: type[TreadleError]) -> Iterator[type[TreadleError]]:
        yield each
        ours = [sub for sub in each.__subclasses__() if sub.__module__.startswith("treadle.")]
        for sub in sorted(ours, key=lambda sub: sub.code):
            yield from walk(sub)

    carried = {code for codes in errors.CODES.values() for code in codes}
    public = [each for each in walk(TreadleError) if "code" in vars(each) and each.code not in carried]
    return list({each.code: each for each in reversed(public)}.values())[::-1]


def error_codes() -> Iterator[tuple[str, type[TreadleError]]]:
    """All codes, each with the class that carries it."""
    for each in error_classes():
        yield each.code, each
        for code in errors.CODES.get(each, ()):
            yield code, each


def _error_rows(each: type[TreadleError]) -> list[list[str]]:
    """The row of a class, and the rows of the codes that have no class of their own."""
    own = _error_row(each)
    codes = errors.CODES.get(each, {})
    return [own, *([f"`{code}`", own[1], own[2], own[3], _capital(text)] for code, text in codes.items())]


def _error_row(each: type[TreadleError]) -> list[str]:
    text = (each.__doc__ or "").strip().split("\n")[0]
    text = text or f"no such {each.code.removesuffix('_not_found')}"
    bare = each.__new__(each)
    parent = next((base.__name__ for base in each.__bases__ if issubclass(base, TreadleError)), "")
    return [
        f"`{each.code}`",
        f"`{each.__name__}`",
        f"`{parent}`" if parent else "",
        str(exit_code_of(bare)),
        _capital(text).rstrip("."),
    ]


def given_codes() -> set[str]:
    """The constant codes that code gives to errors without a class of their own: `Refused(..., code="key_taken")`."""
    return {
        keyword.value.value
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CARRIERS
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }


_CARRIERS = {each.__name__ for each in errors.CODES} | {"RequestRefused"}


def used_codes(call: str) -> set[str]:
    """The constant codes that code gives to `Problem(...)` or `Reason(...)`."""
    found = set()
    texts = (path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    for text in (each for each in texts if f"{call}(" in each):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


# --- settings ---


def settings_page() -> str:
    """Every environment variable, from the dataclass and its docstrings."""
    from treadle.settings import variable_of

    parts = [
        "# Settings",
        _NOTE,
        "Settings come from the environment of the process; options of a command and arguments in Python win over them. A value "
        "that is invalid is an error at start (`invalid_input`), not a surprise later.",
        "Every variable, and also `TREADLE_TOKEN` and `TREADLE_ALERT_...`, can be given by file: if `TREADLE_STORE` is not set, "
        "`TREADLE_STORE_FILE=/run/secrets/store` reads the value from that file, without surrounding white space. A file that "
        "cannot be read is an error.",
    ]
    for name, default, text in settings():
        parts.append(f"## `{variable_of(name)}`\n\n{_capital(text)}\n\nDefault: `{default}`.")
    return _page(parts)


def settings() -> list[tuple[str, str, str]]:
    """Name, default and description of each setting."""
    from treadle.settings import Settings

    tree = ast.parse((SOURCES / "settings.py").read_text("utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            name = node.target.id
            text = str(doc) or {"log_level": "`DEBUG`, `INFO`, `WARNING` or `ERROR`: how much workers log to stderr."}[name]
            default = getattr(Settings(), name)
            found.append((name, str(default) if default not in ("", ()) else "none", " ".join(text.split())))
    return found


# --- metrics ---


def metrics_page() -> str:
    """Every metric, from the table that they are made from."""
    from treadle.engine.metric_table import MAX_LABEL_VALUES, METRICS, OTHER, OUTCOMES, STOPPED

    parts = [
        "# Metrics",
        _NOTE,
        "Metrics of an engine in the Prometheus format: `engine.metrics`, and `/metrics` of a server "
        "([how to](../how-to/observe.md)). Counters and histograms cover the process that serves them; gauges come from the store, "
        "cover the engine's namespace, and are the same in every process. Durations are in seconds.",
        f"Values of labels that come from users are bounded: the first {MAX_LABEL_VALUES} values of a label are shown, all others "
        f"count as `{OTHER}`. `outcome` is one of {', '.join(f'`{each}`' for each in [*OUTCOMES.values(), STOPPED])}.",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
        parts.append(f"## `{metric.shown_name}`\n\n{metric.help}\n\n{_capital(metric.kind)}. Labels: {labels}.")
    return _page(parts)


# --- MCP ---


def mcp_page() -> str:
    """Every tool, resource and prompt, from the tables that they are listed from."""
    from treadle.interfaces.mcp.catalog import DEFAULT, TOOLS, TOOLSET_OF
    from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
    from treadle.interfaces.mcp.resources import RESOURCES

    parts = [
        "# MCP",
        _NOTE,
        "Tools, resources and prompts that `treadle mcp` and `/mcp` of a server offer to models ([how to](../how-to/mcp.md)). "
        "A tool returns structured content with the fields below, and one text item with the same JSON; an error has `isError`, "
        '`{"success": false, "code": ..., "error": ...}` and possibly `diagnostics`, `problems` or `scope`. An object whose text '
        "recommends tools also has `actions`: calls with `tool`, `arguments` and possibly `missing` "
        "(arguments to supply; `a|b`: one of them). "
        "Tools are listed if the caller has their scope and the client lists their toolset; every tool can be called.",
        "## Toolsets",
        _table(
            ["toolset", "tools"],
            [
                [f"`{name}`{' (default)' if name in DEFAULT else ''}", ", ".join(f"`{t}`" for t in TOOLS if TOOLSET_OF[t] == name)]
                for name in dict.fromkeys(TOOLSET_OF.values())
            ],
        ),
        "## Tools",
    ]
    for tool in TOOLS.values():
        needed = tool.input_schema.get("required", [])
        rows = [
            [f"`{name}`{' (required)' if name in needed else ''}", _cell(said.get("description", ""))]
            for name, said in tool.input_schema["properties"].items()
        ]
        fields = ", ".join(f"`{name}`" for name in tool.output_schema["properties"])
        parts += [f"### `{tool.name}`", _help(tool.description)]
        parts += [_table(["argument", "meaning"], rows)] if rows else []
        hints = ["changes nothing"] if not tool.changes else ["destructive"] * tool.ends + ["idempotent"] * tool.repeatable
        parts += [f"Returns {fields}. Toolset `{TOOLSET_OF[tool.name]}`{''.join(f'; {each}' for each in hints)}."]
    parts += ["## Resources", "`afl://runs...` is an alias of `afl://runners...`."]
    for resource in RESOURCES:
        parts.append(f"### `{resource.uri}`\n\n{resource.description} `{resource.mime_type}`.")
    parts.append("## Prompts")
    for prompt in PROMPTS_BY_NAME.values():
        rows = [[f"`{each.name}`{' (required)' if each.required else ''}", each.description or ""] for each in prompt.arguments]
        parts += [f"### `{prompt.name}`", prompt.description] + ([_table(["argument", "meaning"], rows)] if rows else [])
    return _page(parts)


# --- commands ---


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = [
        "# Commands",
        _NOTE,
        "Every command takes `--store URL` or `--server URL` with `--token SECRET` ([how](../how-to/remote.md)), "
        "`--namespace NAME`, `--json` and `--verbose` (`-v`), before or after its name. "
        "With `--json`, stdout is one JSON document and an error is a JSON object on stderr. Results go to stdout, all other "
        "output to stderr. A DURATION is `90`, `1.5s`, `200ms`, `5m`, `2h` or `1d`; a TIME is `2027-01-15T09:00`.",
    ]
    for name, leaf in leaves(COMMANDS):
        command = make(leaf)
        params = [each for each in command.params if not getattr(each, "hidden", False) and getattr(each, "panel", "") != COMMON]
        positional = [str(each.metavar or str(each.name).upper()) for each in params if isinstance(each, click.Argument)]
        rows = [[_cell(_shown(each)), _cell(getattr(each, "help", None) or "")] for each in params]
        parts += [f"## `treadle {name}`", _help(command.help or ""), f"    {' '.join(['treadle', name, *positional, '[OPTIONS]'])}"]
        parts += [f"Only on a store, not with `--server`: {leaf.store_only}."] if leaf.store_only else []
        parts += [_table(["argument or option", "meaning"], rows)] if rows else []
    return _page(parts)


def commands() -> list[tuple[str, click.Command]]:
    """All commands with their names, those of groups after the others."""
    return [(name, make(leaf)) for name, leaf in leaves(COMMANDS)]


def _shown(param: click.Parameter) -> str:
    """An argument or option as it is typed."""
    if not isinstance(param, click.Option):
        return f"`{param.metavar or str(param.name).upper()}`"
    names = ", ".join(f"`{each}`" for each in param.opts)
    if param.secondary_opts:
        names = f"`{param.opts[0]}/{param.secondary_opts[0]}`"
    required = " (required)" if param.required else ""
    return names + ("" if param.is_flag else f" {param.metavar or _metavar(param.type)}") + required


def _metavar(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(kind.choices)
    return "TEXT" if kind is click.STRING else "N"


def _help(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


SERVER_TROUBLES = [
    ["no server listens there, or it did not respond in time", "", "`server_unreachable`", "4"],
    ["the response is not from a Treadle server", "any", "`unexpected_answer`", "4"],
    ["no token, or an unknown, expired or revoked one", "401", "`unauthorized`", "5"],
    ["the token does not grant the scope", "403", "`forbidden`", "5"],
    ["no such task, run, ...", "404", "`task_not_found`, ...", "3"],
    ["the state of the entity forbids it", "409", "`illegal_transition`, ...", "5"],
    ["the input is invalid", "413, 422", "`invalid_input`, ...", "2"],
    ["too many wrong tokens from this address", "429", "`too_many_attempts`", "5"],
    ["the server's store does not respond", "503", "`store_unavailable`, ...", "4"],
    ["the command needs the store", "", "`not_over_http`", "2"],
]


def exits_page() -> str:
    """The exit codes."""
    parts = [
        "# Exit codes",
        _NOTE,
        "The same for every command. 0 means success; for `--wait` and `run`, that the work succeeded.",
    ]
    parts += [f"## `{code}`\n\n{_capital(meaning)}." for code, meaning in EXIT_CODES.items()]
    parts += [
        "## With `--server`",
        "The same codes: a server returns the errors that the store would raise. Errors are one line on stderr (with `--json`, an "
        "object with `code` and `message`) and never contain the token.",
        _table(["error", "status", "code", "exit"], SERVER_TROUBLES),
    ]
    return _page(parts)


def repeats_page() -> str:
    """The commands that continue or repeat work."""
    rows = [[_capital(_cell(situation)), f"`treadle {command}`", _cell(effect)] for command, situation, effect in REPEATS]
    return _page(
        [
            "# Resume, retry, fork, rerun, adopt",
            _NOTE,
            "Five words, each for one situation of a run. *Resume*, *retry* and *adopt* continue the same run; *fork* and *rerun* "
            "start a new one, and the old one stays as it is. `treadle runs --help` prints the same table; "
            "`treadle why ID` names the command that fits.",
            _table(["situation", "command", "effect"], rows),
            "The operations have the same names in HTTP (`POST /v1/runs/{run_id}/retry`), MCP (`run_retry`) and the dashboard. A "
            "completed step is repeated in its own run only if it followed from failures that the code, or `collectErrors`, had "
            "collected: its dependents have used its result. Before a fork, `--dry-run` "
            "lists the calls that were made and would be made again, with their effects. With `--result`, the step has this "
            "result, and its handler is not called. With `--replace`, the old run is held until the new one is stored, and then "
            "canceled, so that only one of them goes on; a repeated call returns the same new run.",
            "See [inspect and repair](../how-to/inspect-and-repair.md), [dead letters](../how-to/dead-letters.md) and "
            "[changed code](../how-to/durable-functions.md).",
        ]
    )


# --- HTTP ---


def http_page() -> str:
    """Every route and every record, from the OpenAPI document."""
    from treadle.interfaces.http.app import api_document
    from treadle.interfaces.http.docs_page import fields_of, kind_of, operations, records

    document = api_document()
    known = {name for name, _ in records(document)}
    parts = [
        "# HTTP",
        _NOTE,
        document["info"]["description"].strip(),
        "`treadle up` and `treadle serve` serve it. A server describes itself: `GET /v1/openapi.json` for programs, `GET /v1/docs` "
        "for people. "
        "See [access](../how-to/access.md) and [serving HTTP](../how-to/http.md).",
        "## Errors",
        "The body of an error is a [ProblemDetails](#problemdetails) with a `code`; programs decide by the code, people read "
        "`detail`. Each operation lists its statuses; this is the status of every code in the [error tree](errors.md). 400 and 408 "
        "also answer requests that cannot be read, or not in time.",
        _table(["status", "codes"], _failures()),
    ]
    for operation in (each for group in operations(document).values() for each in group):
        text, answer = operation["text"].strip(), operation["answer"] and f" with {_record(operation['answer'], known)}"
        named = operation["scope"] is None or "Needs the scope" in text
        scope = "" if named else f"\n\nNeeds the scope `{operation['scope']}`."
        failures = f" Errors: {', '.join(operation['errors'])} ([meaning](#errors))." if operation["errors"] else ""
        rows = [
            [
                f"`{each['name']}`{' *' if each['required'] else ''}",
                each["where"],
                _cell(kind_of(each["schema"])),
                _cell(each["text"]),
            ]
            for each in operation["fields"]
        ]
        parts.append(
            f"## `{operation['method']} {operation['path']}`\n\n{text}{scope}\n\nReturns {operation['status']}{answer}.{failures}"
        )
        if rows:
            parts.append(_table(["name", "in", "type", ""], rows))
        if operation["example"]:
            parts.append(_fenced(json.dumps(operation["example"], indent=2), "json"))
    parts.append("## Records\n\nThe records that responses contain.")
    for name, schema in records(document):
        rows = [[f"`{each['name']}`", _cell(kind_of(each["schema"])), _cell(each["text"])] for each in fields_of(schema)]
        parts.append(f"### {name}\n\n{schema.get('description', '')}\n\n" + _table(["field", "type", ""], rows))
    return _page(parts)


def _record(name: str, known: set[str]) -> str:
    return f"[`{name}`](#{name.lower()})" if name in known else f"`{name}`"


def _failures() -> list[list[str]]:
    """The statuses of errors, each with the codes that it is sent with."""
    from treadle.interfaces.http.problems import status_of

    found: dict[int, list[str]] = {}
    for code, kind in error_codes():
        found.setdefault(status_of(kind.__new__(kind)), []).append(f"`{code}`")
    return [[str(status), ", ".join(sorted(found[status]))] for status in sorted(found)]


# --- the language ---


def diagnostics_page() -> str:
    """Every rule of the compiler: wrong, right, why."""
    parts = [
        "# Diagnostics",
        _NOTE,
        "The rules of the compiler, each under the id that a diagnostic shows in brackets (`error[unknown-type]`). Errors "
        "prevent compilation; warnings do so only with `treadle compile --strict FILE`.",
    ]
    for rule in RULES.values():
        found = compile_sources([("x.afl", rule.wrong)])
        severity = next((str(each.severity) for each in found.diagnostics if each.rule == rule.id), "error")
        wrong, right = _fenced(rule.wrong, "afl wrong"), _fenced(rule.right, "afl")
        parts.append(f"## `{rule.id}` ({severity})\n\n{rule.why}\n\nWrong:\n\n{wrong}\n\nRight:\n\n{right}")
    return _page(parts)


def _fenced(text: str, lang: str) -> str:
    return f"```{lang}\n{text.rstrip()}\n```"


# --- writing ---


def _page(parts: list[str]) -> str:
    return wrapped("\n\n".join(parts) + "\n")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/commands.md": commands_page,
    "docs/reference/exit-codes.md": exits_page,
    "docs/reference/repeats.md": repeats_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/http.md": http_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/mcp.md": mcp_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/states.md": states_page,
    "docs/reference/diagnostics.md": diagnostics_page,
}


def texts() -> list[Path]:
    """All Markdown pages of the project that may hold snippets."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_snippets(text: str) -> str:
    """The page with every snippet as its file has it."""

    def block(match: re.Match[str]) -> str:
        code = snippet(match["path"])
        return f"<!-- snippet: {match['path']} -->\n```{match['lang']}\n{code}```\n"

    return _SNIPPET.sub(block, text)


def snippet(place: str) -> str:
    """The code of a file, or of its section after `#`, without indentation and blank lines around it."""
    path, _, section = place.partition("#")
    code = (ROOT / path).read_text("utf-8")
    if not section:
        return code
    parts = re.split(r"^ *# --- (\S+) ---\n", code, flags=re.M)
    return textwrap.dedent(dict(zip(parts[1::2], parts[2::2], strict=True))[section]).strip("\n") + "\n"


def _filled(text: str) -> str:
    """The page with everything that is derived from code."""
    return with_sql_features(with_grammar(with_python(with_snippets(text))))


def outdated() -> dict[Path, str]:
    """Return the wanted text of every page that is out of date."""
    wanted = {ROOT / place: make() for place, make in PAGES.items()}
    wanted |= {path: _filled(path.read_text("utf-8")) for path in texts() if path not in wanted}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}


def main() -> int:
    """Write outdated pages, or with `--check` only list them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    parser.add_argument("--llms", metavar="DIR", type=Path, help="write llms.txt and llms-full.txt into this folder instead")
    options = parser.parse_args()
    if options.llms:
        from treadle.interfaces.http.docs_page import full, index

        (options.llms / "llms.txt").write_text(index(), "utf-8")
        (options.llms / "llms-full.txt").write_text(full(), "utf-8")
        return 0
    check = options.check
    changed = outdated()
    for path, text in changed.items():
        sys.stdout.write(f"{path.relative_to(ROOT)} {'is out of date' if check else 'written'}\n")
        if not check:
            path.write_text(text, "utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
