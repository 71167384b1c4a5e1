"""Advice for models: each command that a reason, a problem or an error recommends to a shell, as the tool that does the same.

The engine's texts name commands (`treadle lists resume imports`). This table maps each to a tool and its arguments; the edge of
MCP rewrites engine texts with it, and adds the calls as data (`actions`). Values of users are never rewritten.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.model.values import Json

TOOLS_OF_COMMANDS = {
    "why": "why id",
    "status": "system_status",
    "workers": "worker_abilities",
    "events": "event_list",
    "audit": "audit_list",
    "metrics": "metrics_show",
    "signal": "run_signal run_id name",
    "enqueue": "task_enqueue name",
    "submit": "run_start flow",
    "worker": "worker_start",
    "up": "worker_start",
    "tasks list": "task_list",
    "tasks show": "task_show task_id",
    "tasks retry": "task_retry task_id",
    "tasks cancel": "task_cancel task_id",
    "tasks pause": "task_pause task_id",
    "tasks resume": "task_resume task_id",
    "runs list": "run_list",
    "runs show": "run_show run_id",
    "runs steps": "run_steps run_id",
    "runs logs": "run_logs run_id",
    "runs retry": "run_retry run_id step",
    "runs rerun": "run_rerun run_id",
    "runs fork": "run_fork run_id step",
    "runs pause": "afl_manage_runner run_id action=pause",
    "runs resume": "afl_manage_runner run_id action=resume",
    "runs cancel": "afl_manage_runner run_id action=cancel",
    "functions list": "function_list",
    "functions start": "function_start name",
    "functions adopt": "function_adopt run_id",
    "flows list": "flow_list",
    "flows show": "flow_show name",
    "flows publish": "flow_publish name",
    "handlers list": "handler_list",
    "lists list": "list_show",
    "lists show": "list_show task_list",
    "lists pause": "list_manage task_list action=pause",
    "lists resume": "list_manage task_list action=resume",
    "lists drain": "list_manage task_list action=drain",
    "lists policy": "list_policy task_list no_handler",
    "lists limit": "limit_set",
    "lists desired": "list_desired task_list",
    "schedules add": "schedule_create name",
    "schedules list": "schedule_list",
    "schedules show": "schedule_show name",
    "schedules edit": "schedule_edit name",
    "schedules preview": "schedule_preview name",
    "schedules pause": "schedule_manage name action=pause",
    "schedules resume": "schedule_manage name action=resume",
    "schedules run-now": "schedule_run name",
    "schedules remove": "schedule_delete name",
    "watchers add": "watcher_create name",
    "watchers list": "watcher_list",
    "watchers show": "watcher_show name",
    "watchers edit": "watcher_edit name",
    "watchers pause": "watcher_manage name action=pause",
    "watchers resume": "watcher_manage name action=resume",
    "watchers look": "watcher_manage name action=look",
    "watchers remove": "watcher_delete name",
    "external list": "external_job_list",
    "external show": "external_job_show job_id",
    "external poll-now": "external_job_manage job_id action=poll",
    "external cancel": "external_job_manage job_id action=cancel",
    "external rebuild": "external_job_rebuild",
    "effects list": "effect_list",
    "approvals list": "approval_list",
    "approvals show": "approval_show approval_id",
    "approvals approve": "approval_decide approval_id decision=approve",
    "approvals deny": "approval_decide approval_id decision=deny",
    "alerts list": "alert_list",
    "alerts history": "alert_list",
    "alerts show": "alert_show name",
    "alerts test": "alert_test name",
    "alerts silence": "alert_silence name",
    "alerts remove": "alert_remove name",
    "objectives": "objective_list",
    "objectives list": "objective_list",
    "objectives show": "objective_show objective_id",
    "objectives edit": "objective_edit objective_id",
    "objectives approve": "objective_manage objective_id action=approve",
    "objectives block": "objective_manage objective_id action=block",
    "objectives unblock": "objective_manage objective_id action=unblock",
    "dlq list": "dead_letter_list",
    "dlq show": "dead_letter_groups",
    "dlq retry": "dead_letter_retry ids",
    "dlq discard": "dead_letter_discard ids",
    "store verify": "store_verify",
    "store keep": "store_keep task_list",
    "store prune": "store_prune",
}
"""Commands with the tool that does the same: its positional arguments in order, and fixed ones."""

_LETTERS = "fingerprint|ids|everything|name|task_list|error_code|older_than|newer_than"
_ONE_OF = {
    "dead_letter_retry": [_LETTERS],
    "dead_letter_discard": [_LETTERS],
    "limit_set": ["handler|key", "max_running|rate|backlog|remove"],
    "flow_publish": ["source|sources"],
    "schedule_edit": [],
    "watcher_edit": [],
    "objective_edit": [],
}
"""Tools that refuse a call without one of these arguments; empty: without any beside the required ones."""

SHELL_ONLY = frozenset(
    {
        "worker --topology",
        "dev",
        "store prune --compact",
        "store compact",
        "store migrate",
        "store accept",
        "token",
        "declare",
        "doctor",
        "import",
        "namespaces",
        "top",
    }
)
"""Commands that have no tool: a person runs them."""

_OPTIONS = {
    "--list": "task_list",
    "--max": "max_running",
    "--none": "remove",
    "--all": "every",
    "--code": "error_code",
    "--accept": "acceptance_criteria",
    "--handlers": None,
    "--yes": None,
}
_COMMAND = re.compile(r"`treadle ([a-z][^`]*)`")
_PLACEHOLDERS = frozenset({"ID", "N", "R", "JSON", "TEXT", "MODULE", "FILE", "NAME"})

_PROSE = frozenset(
    [
        "why",
        "text",
        "remedy",
        "error",
        "message",
        "reason",
        "reasons",
        "standing",
        "activity",
        "note",
        "action",
        "next_actions",
        "failure_detail",
    ]
)
"""Fields in which the engine writes prose, with advice."""

_VALUES = frozenset(
    [
        "payload",
        "result",
        "inputs",
        "outputs",
        "params",
        "returns",
        "context",
        "metadata",
        "content",
        "progress",
        "tags",
        "details",
        "data",
        "sources",
        "lines",
        "json",
        "edits",
        "structured",
        "arguments",
        "input_schema",
        "mermaid",
        "handlers",
    ]
)
"""Fields with values of users, which are never rewritten."""

Schemas = Callable[[str], Mapping[str, Any] | None]
"""Returns the schema of a tool's arguments; None if there is no such tool."""


@dataclass(frozen=True, slots=True)
class Action:
    """A recommended call; the caller has to supply the missing arguments (`a|b`: one of them)."""

    tool: str
    arguments: dict[str, Json]
    missing: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """The call as data."""
        call: dict[str, Json] = {"tool": self.tool, "arguments": self.arguments}
        return call | ({"missing": list(self.missing)} if self.missing else {})

    def through(self, other: str) -> Action:
        """The same call made through the tool that calls other tools."""
        return Action(other, {"name": self.tool, "arguments": self.arguments}, tuple(f"arguments.{name}" for name in self.missing))

    def __str__(self) -> str:
        arguments = self.arguments | {name: "?" for name in self.missing if not {".", "|"} & set(name)}
        return f"`{self.tool} {json.dumps(arguments, ensure_ascii=False)}`" if arguments else f"`{self.tool}`"


def find_action(command: str, schema_of: Schemas) -> Action | None:
    """The call that does the same as a command (without `treadle`); None if only a person can run it."""
    if any(f"{command} ".startswith(f"{prefix} ") for prefix in SHELL_ONLY):
        return None
    words = _words(command)
    size = next((size for size in (2, 1) if " ".join(words[:size]) in TOOLS_OF_COMMANDS), 0)
    if not size:
        return None
    tool, *names = TOOLS_OF_COMMANDS[" ".join(words[:size])].split()
    schema = schema_of(tool)
    return None if schema is None else _action(tool, names, words[size:], schema)


def _action(tool: str, names: list[str], words: Iterable[str], whole: Mapping[str, Any]) -> Action:
    schema, required = whole["properties"], whole.get("required", ())
    positional = iter([name for name in names if "=" not in name])
    arguments: dict[str, Json] = dict(name.split("=", 1) for name in names if "=" in name)
    missing = []
    rest = iter(words)
    for word in rest:
        name = _OPTIONS.get(word, word[2:].replace("-", "_")) if word.startswith("--") else next(positional, None)
        flag = schema.get(name or "", {}).get("type") == "boolean"
        value = "true" if flag else next(rest, "") if word.startswith("--") else word
        if name is None or name not in schema:
            continue
        if value in _PLACEHOLDERS:
            missing.append(name)
        else:
            arguments[name] = _typed(value, schema[name])
    missing += [name for name in required if name not in arguments and name not in missing]
    if tool in _ONE_OF:
        choices = _ONE_OF[tool] or ["|".join(name for name in schema if name not in (*required, "clear"))]
        missing += [choice for choice in choices if not {*arguments, *missing} & set(choice.split("|"))]
    return Action(tool, arguments, tuple(missing))


def _typed(value: str, schema: Mapping[str, Any]) -> Json:
    kinds = {schema.get("type"), *(alternative.get("type") for alternative in schema.get("anyOf", ()))}
    if "array" in kinds:
        return [value]
    if kinds & {"integer", "number", "boolean", "object"}:
        return json.loads(value)
    return value


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a name with a quote in it
        return command.split()


@dataclass(frozen=True, slots=True)
class Advisor:
    """Rewrites the engine's texts for one client."""

    schema_of: Schemas
    listed: Callable[[str], bool]
    """Whether the client's list has the tool; others are called through `tool_call`."""

    def text(self, text: str, actions: list[Action] | None = None) -> str:
        """The text with tools instead of commands; adds the calls to `actions`."""

        def rewrite(match: re.Match[str]) -> str:
            action = find_action(match[1], self.schema_of)
            if action is None:
                return f"a shell command of the operator ({match[1]})"
            action = action if self.listed(action.tool) else action.through("tool_call")
            if actions is not None and action not in actions:
                actions.append(action)
            return str(action)

        return _COMMAND.sub(rewrite, text) if "`treadle " in text else text

    def value(self, value: Json) -> Json:
        """The value with rewritten prose; an object whose prose recommends tools also gets `actions`."""
        if isinstance(value, list):
            return [self.value(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        actions: list[Action] = []
        rewritten = {name: field if name in _VALUES else self._field(name, field, actions) for name, field in value.items()}
        return rewritten | {"actions": [action.as_json() for action in actions]} if actions else rewritten

    def _field(self, name: str, value: Json, actions: list[Action]) -> Json:
        if name in _PROSE and isinstance(value, str):
            return self.text(value, actions)
        if name in _PROSE and isinstance(value, list) and all(isinstance(text, str) for text in value):
            return [self.text(text, actions) for text in value]
        return self.value(value)
