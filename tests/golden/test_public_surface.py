"""The public surface in one file, one fact per line: a change of the interfaces shows as a change of `public_surface.txt`.

Write it anew with `python -m tests.golden.test_public_surface`, and read the difference.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from docs.generate import commands, error_codes, settings

import treadle
from treadle import BlockingFunctionContext, Context, Engine, FunctionContext
from treadle.interfaces.http.app import api_document
from treadle.interfaces.mcp.catalog import TOOLS, TOOLSET_OF
from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
from treadle.interfaces.mcp.resources import RESOURCES

SURFACE = Path(__file__).with_name("public_surface.txt")
MODULES = (
    "treadle",
    "treadle.agents",
    "treadle.client",
    "treadle.dispatch",
    "treadle.goals",
    "treadle.integrations.django",
    "treadle.integrations.enqueue",
    "treadle.integrations.fastapi",
    "treadle.integrations.flask",
    "treadle.integrations.langgraph",
    "treadle.integrations.openai_agents",
    "treadle.integrations.pydantic_ai",
    "treadle.integrations.sqlalchemy",
    "treadle.integrations.webhooks",
    "treadle.llm",
    "treadle.testing",
    "afl",
    "afl.runtime",
)
UNDESCRIBED = {"title", "description", "examples", "example", "default", "$defs", "components"}


def test_the_public_surface_is_the_recorded_one() -> None:
    now = "\n".join(surface()) + "\n"
    recorded = SURFACE.read_text("utf-8")
    changes = "\n".join(difflib.unified_diff(recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=0))
    assert now == recorded, f"{changes}\nIf that is intended: python -m tests.golden.test_public_surface"


def surface() -> Iterator[str]:
    """Every public name with its shape, in sections."""
    for name, command in commands():
        yield f"command {name}"
        for param in command.params:
            yield f"  {_param(param)}"
    yield from _routes()
    for name, tool in TOOLS.items():
        yield f"tool {name} toolset={TOOLSET_OF[name]} scope={tool.scope} changes={tool.changes} ends={tool.ends}"
        yield from (f"  takes {line}" for line in _shape(tool.input_schema, tool.input_schema.get("$defs", {})))
        yield from (f"  returns {line}" for line in _shape(tool.output_schema, tool.output_schema.get("$defs", {})))
    for resource in RESOURCES:
        yield f"resource {resource.uri}"
    for prompt in PROMPTS_BY_NAME.values():
        yield f"prompt {prompt.name} {' '.join(argument.name for argument in prompt.arguments)}"
    for module in MODULES:
        exported = importlib.import_module(module)
        names = getattr(exported, "__all__", None) or [name for name in vars(exported) if name[0] != "_"]
        hidden = set() if hasattr(exported, "__all__") else {name for name in names if _is_module(getattr(exported, name))}
        yield from (f"python {module}.{name}" for name in sorted(set(names) - hidden - {"annotations"}))
    for owner in (Engine, Context, FunctionContext, BlockingFunctionContext):
        yield from (f"python {owner.__name__}.{name}" for name in sorted(dir(owner)) if name[0] != "_")
    for setting, default, _ in settings():
        yield f"setting {setting} = {default}"
    yield from sorted(f"error {code} {kind.__name__}" for code, kind in error_codes())
    yield from _metrics()


def _is_module(value: object) -> bool:
    return type(value) is type(treadle) or getattr(value, "__module__", "").split(".")[0] in ("typing", "collections", "functools")


def _param(param: click.Parameter) -> str:
    names = "/".join([*param.opts, *param.secondary_opts]) if isinstance(param, click.Option) else f"<{param.name}>"
    kind = "|".join(param.type.choices) if isinstance(param.type, click.Choice) else ""
    flags = (("required", param.required), ("many", param.multiple if isinstance(param, click.Option) else param.nargs == -1))
    return " ".join([names, kind, *(word for word, applies in flags if applies)]).rstrip()


def _routes() -> Iterator[str]:
    document = api_document()
    schemas = document["components"]["schemas"]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            yield f"route {method.upper()} {path} {operation.get('security', '')} {' '.join(sorted(operation['responses']))}"
            for parameter in operation.get("parameters", ()):
                shape = " ".join(_shape(parameter["schema"], schemas))
                yield f"  {parameter['in']} {parameter['name']} required={parameter.get('required', False)} {shape}"
            bodies = [("takes", operation.get("requestBody", {}))]
            bodies += [(f"returns {status}", answer) for status, answer in operation["responses"].items() if status < "300"]
            for word, body in bodies:
                for media, content in body.get("content", {}).items():
                    yield f"  {word} {media}"
                    yield from (f"    {line}" for line in _shape(content.get("schema", {}), schemas))


def _shape(schema: dict[str, Any], definitions: dict[str, Any], path: str = "", inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The fields of a JSON schema with their types, whatever its records are called."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in inside:
            yield f"{path} (recursive)"
            return
        yield from _shape(definitions[name], definitions, path, (*inside, name))
        return
    described = {key: value for key, value in schema.items() if key not in UNDESCRIBED}
    properties = described.pop("properties", {})
    required = set(described.pop("required", ()))
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in described.pop(key, ())]
    items = described.pop("items", None)
    extra = described.pop("additionalProperties", None)
    yield f"{path or '.'} {' '.join(f'{key}={value}' for key, value in sorted(described.items(), key=str))}".rstrip()
    for name, below in properties.items():
        yield from _shape(below, definitions, f"{path}.{name}{'!' if name in required else ''}", inside)
    for branch in branches:
        yield from _shape(branch, definitions, f"{path}|", inside)
    if isinstance(items, dict):
        yield from _shape(items, definitions, f"{path}[]", inside)
    if isinstance(extra, dict):
        yield from _shape(extra, definitions, f"{path}{{}}", inside)


def _metrics() -> Iterator[str]:
    from treadle.engine.metric_table import METRICS

    for metric in METRICS:
        yield f"metric {metric.shown_name} {metric.kind} {' '.join(metric.labels)}".rstrip()


if __name__ == "__main__":
    SURFACE.write_text("\n".join(surface()) + "\n", "utf-8")
