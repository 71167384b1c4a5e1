"""All that is offered, in the order in which it is listed."""

from __future__ import annotations

import re

from treadle.mcp import approvals, external_jobs, flows, handlers, language, objectives, runs, system, tasks, workflows
from treadle.mcp.prompt import Prompt
from treadle.mcp.prompts import PROMPTS
from treadle.mcp.resource import Resource
from treadle.mcp.resources import RESOURCES
from treadle.mcp.tool import Tool

_MODULES = (language, workflows, handlers, flows, runs, tasks, approvals, objectives, external_jobs, system)

TOOLS: dict[str, Tool] = {tool.name: tool for module in _MODULES for tool in module.TOOLS}
PROMPTS_BY_NAME: dict[str, Prompt] = {prompt.name: prompt for prompt in PROMPTS}

_RUNS = re.compile(r"^afl://runs(?=[/?]|$)")
"""Runs are runners to agents, and runs to everybody else: both are understood."""


def find_resource(uri: str) -> tuple[Resource, dict[str, str]] | None:
    """The resource of that address, and what its template has been filled in with; None: there is none."""
    uri = _RUNS.sub("afl://runners", uri)
    for each in RESOURCES:
        filled = each.template.match(uri)
        if filled is not None:
            return each, {name: str(value) for name, value in filled.items()}
    return None
