"""`treadle compile`, `fmt`, `fix`, `graph` and `treadle flows ...`: AFL sources, as files and as published flows."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import facts, plain, when
from treadle.interfaces.cli.messages import BAD_INPUT, FAILED, print_diagnostics
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.sources import Files, Places, StrictOption, compile_here, flow_name, read_sources
from treadle.model.errors import InvalidFlow, InvalidInput
from treadle.model.names import check_name
from treadle.model.text import printable
from treadle.model.values import Json

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.flows import FlowDetail, SourceText, WorkflowSignature
    from treadle.lang import Compiled, Diagnostic, Fixed


def compile_files(
    session: CommandSession,
    files: Files,
    check: Annotated[bool, option("--check", help="Print only diagnostics; leave the program out of the --json output")] = False,
    strict: StrictOption = False,
    reference: Annotated[
        bool, option("--reference", help="Reject extensions that the reference implementation of AFL does not have")
    ] = False,
    output: Annotated[
        str | None, option("--output", "-o", metavar="FILE", help="Write the program to this file as JSON; - is stdout")
    ] = None,
) -> None:
    """Compile AFL sources together and print all diagnostics; exit 2 if there is an error."""
    from treadle.lang import compile_sources  # importing the parser takes time

    if check and output is not None:
        raise InvalidInput("Give either --check or --output, not both.")
    compiled = compile_sources(read_sources(files), reference=reference)
    if strict or session.strict:
        compiled = compiled.strictly()
    ok = compiled.ok
    print_diagnostics(session, compiled.diagnostics)
    if ok and output is not None:
        _write(output, json.dumps(compiled.program, ensure_ascii=False, indent=2) + "\n")
    if output != "-":
        session.show(_as_json(compiled, ok, with_program=not check and output is None), lambda: _summary(compiled, ok))
    if not ok:
        raise Exit(BAD_INPUT)


def _as_json(compiled: Compiled, ok: bool, *, with_program: bool) -> dict[str, Json]:
    from treadle.lang import Program

    value: dict[str, Json] = {
        "ok": ok,
        "digest": compiled.digest or None,
        "diagnostics": [diagnostic.as_json() for diagnostic in compiled.diagnostics],
    }
    if compiled.ok:
        program = Program.load(compiled.program)
        value["workflows"] = [facet.qualified_name for facet in program.workflows]
        value["event_facets"] = [facet.qualified_name for facet in program.event_facets]
    if with_program and compiled.ok:
        value["program"] = compiled.program
    return value


def _summary(compiled: Compiled, ok: bool) -> RenderableType:
    from treadle.lang import Program

    errors, warnings = len(compiled.errors), len(compiled.warnings)
    counts = " and ".join(part for part in (_count(errors, "error"), _count(warnings, "warning")) if part)
    if not ok:
        return plain(f"Not compiled: {counts}.", "bold red")
    program = Program.load(compiled.program)
    workflows = ", ".join(facet.qualified_name for facet in program.workflows) or "none"
    events = ", ".join(facet.qualified_name for facet in program.event_facets) or "none"
    head = f"Compiled{f' with {counts}' if counts else ''}: {compiled.digest[:12]}"
    return plain(f"{head}\n  workflows     {workflows}\n  event facets  {events}", "" if counts else "green")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""


def _write(place: str, text: str) -> None:
    """Write the text to a file, or to stdout."""
    if place == "-":
        sys.stdout.write(text)
        return
    try:
        Path(place).write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInput(f"{place} cannot be written: {error.strerror}.") from None


@dataclass(frozen=True)
class _Rewritten:
    name: str
    before: str
    after: str
    how: str = "formatted"

    @property
    def changed(self) -> bool:
        return self.before != self.after


def fmt(
    session: CommandSession,
    files: Files,
    check: Annotated[bool, option("--check", help="Change nothing; exit 1 if a file would change")] = False,
    diff: Annotated[bool, option("--diff", help="Change nothing; print the changes as a diff")] = False,
) -> None:
    """Format AFL files in place; `-` formats stdin to stdout. If one file has a syntax error, none is changed."""
    if "-" in files and len(files) > 1:
        raise InvalidInput("- (stdin) cannot be combined with files.")
    done = _format(read_sources(files))
    changed = [rewritten for rewritten in done if rewritten.changed]
    if not (check or diff):
        for rewritten in done if files == ["-"] else changed:
            _write(rewritten.name, rewritten.after)
        if files == ["-"]:
            return
    value = {
        "files": [{"file": rewritten.name, "changed": rewritten.changed} for rewritten in done],
        "written": not (check or diff),
    }
    session.show(value, lambda: plain(_format_summary(done, changed, check=check, diff=diff)))
    if check and changed:
        raise Exit(FAILED)


def _format(sources: list[tuple[str, str]]) -> list[_Rewritten]:
    from treadle.lang import CannotFormat, format_source  # importing the parser takes time

    done: list[_Rewritten] = []
    problems: list[Diagnostic] = []
    for name, text in sources:
        try:
            done.append(_Rewritten(name, text, format_source(text, name)))
        except CannotFormat as error:
            problems += error.diagnostics
    if problems:
        raise InvalidFlow("There are syntax errors; nothing was changed.", tuple(problems))
    return done


def _format_summary(done: list[_Rewritten], changed: list[_Rewritten], *, check: bool, diff: bool) -> str:
    if diff:
        return "\n".join(_diff(rewritten) for rewritten in changed) or f"{len(done)} already formatted"
    verb = "would be formatted" if check else "formatted"
    lines = [f"{rewritten.name}: {verb}" for rewritten in changed]
    unchanged = len(done) - len(changed)
    return "\n".join([*lines, f"{len(changed)} {verb}, {unchanged} unchanged"])


def _diff(rewritten: _Rewritten) -> str:
    lines = difflib.unified_diff(
        rewritten.before.splitlines(),
        rewritten.after.splitlines(),
        rewritten.name,
        f"{rewritten.name} ({rewritten.how})",
        lineterm="",
    )
    return printable("\n".join(lines), keep="\n\t")


def fix(
    session: CommandSession,
    files: Files,
    write: Annotated[bool, option("--write", "-w", help="Write the changes to the files instead of printing a diff")] = False,
    check: Annotated[bool, option("--check", help="Change nothing; exit 1 if a file would change")] = False,
) -> None:
    """Apply the fixes of all diagnostics to AFL files: print the changes as a diff, or write them.

    Errors that no fix removes are printed, and the command exits with 2. `-` reads stdin and prints the corrected text.
    """
    from treadle.lang import fix_sources  # importing the parser takes time

    if write and check:
        raise InvalidInput("Give either --write or --check, not both.")
    if "-" in files and (write or len(files) > 1):
        raise InvalidInput("- (stdin) can neither be written nor combined with files.")
    before = read_sources(files)
    fixed = fix_sources(before)
    done = [_Rewritten(name, text, after, "fixed") for (name, text), (_, after) in zip(before, fixed.sources, strict=True)]
    changed = [rewritten for rewritten in done if rewritten.changed]
    print_diagnostics(session, fixed.compiled.diagnostics)
    if files == ["-"] and not (check or session.json):
        sys.stdout.write(done[0].after)
    else:
        for rewritten in changed if write else ():
            _write(rewritten.name, rewritten.after)
        session.show(_fixed_json(done, fixed, write=write), lambda: plain(_fixed_text(changed, fixed, write=write, check=check)))
    if not fixed.compiled.ok:
        raise Exit(BAD_INPUT)
    if check and changed:
        raise Exit(FAILED)


def _fixed_json(done: list[_Rewritten], fixed: Fixed, *, write: bool) -> dict[str, Json]:
    return {
        "ok": fixed.compiled.ok,
        "files": [{"file": rewritten.name, "changed": rewritten.changed, "text": rewritten.after} for rewritten in done],
        "written": write,
        "fixed": [diagnostic.as_json() for diagnostic in fixed.applied],
        "diagnostics": [diagnostic.as_json() for diagnostic in fixed.compiled.diagnostics],
    }


def _fixed_text(changed: list[_Rewritten], fixed: Fixed, *, write: bool, check: bool) -> str:
    verb = "fixed" if write else "can be fixed"
    lines = [] if write or check else [_diff(rewritten) for rewritten in changed]
    lines += [
        f"{diagnostic.source}:{diagnostic.line}:{diagnostic.column}: {verb}: {diagnostic.fixes[0].title}"
        for diagnostic in fixed.applied
    ]
    remaining = len(fixed.compiled.errors)
    rest = f"; {_count(remaining, 'error')} left" if remaining else ""
    return "\n".join([*lines, f"{_count(len(fixed.applied), 'problem') or 'Nothing'} {verb}{rest}"])


async def graph(
    session: CommandSession,
    places: Places,
    workflow: Annotated[str | None, option(help="Only this workflow; default: all workflows of the flow")] = None,
    form: Annotated[
        str, option("--format", choices=("json", "dot", "mermaid"), help="Output format; dot is for Graphviz")
    ] = "mermaid",
) -> None:
    """Print the steps of workflows and their dependencies as a graph."""
    from treadle.api.flows import SourceText

    name = flow_name(places)
    if name is None:
        sources = [SourceText(file, text) for file, text in read_sources(places)]
        async with session.api(scratch=True) as api:
            drawing = await api.flows.draw(sources, workflow=workflow)
    else:
        async with session.api() as api:
            drawing = await api.flows.graph(name, workflow=workflow)
    if session.json or form == "json":
        value = {
            "nodes": [{"id": node.id, "label": node.label, "kind": node.kind, "group": node.group} for node in drawing.nodes],
            "edges": to_builtins(drawing.edges),
            "groups": [{"id": block.id, "label": block.label, "parent": block.parent} for block in drawing.groups],
        }
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    else:
        text = drawing.dot if form == "dot" else drawing.mermaid
    sys.stdout.write(text)
    sys.stdout.flush()


Name = Annotated[str, argument(metavar="NAME", help="The flow's name, or its digest")]


async def publish(
    session: CommandSession,
    name: Annotated[str, argument(metavar="NAME", help="The name to publish under, e.g. shop")],
    files: Annotated[list[str], argument(metavar="FILE...", help="AFL files or folders, compiled together")],
    strict: StrictOption = False,
) -> None:
    """Publish a flow as the next version of a name. Running runs keep their version; publishing the same flow again adds none."""
    from treadle.api.flows import SourceText

    sources = read_sources(files)
    check_name(name, "flow name")

    def check(engine: Engine) -> None:
        compile_here(session, engine, sources, strict=strict)

    async with session.api(migrate=True, first=check) as api:
        texts = [SourceText(file, text) for file, text in sources]
        published = await api.flows.publish(name, texts, strict=strict or session.strict)
    session.show(published, lambda: plain(f"{name} is at version {published.version} now ({published.flow_id[:12]})"))


async def show(
    session: CommandSession,
    name: Name,
    version: Annotated[int | None, option("--version", metavar="N", help="This version; default: the newest")] = None,
    source: Annotated[bool, option("--source", help="Only the AFL text")] = False,
) -> None:
    """Show a flow: its workflows with their parameters and results, and the handlers it needs."""
    async with session.api() as api:
        flow = await api.flows.get(name, version=version)
        now = (await api.system.time()).now
    session.show(flow, lambda: _sources(flow.sources) if source else _flow(name, flow, now))


def _sources(sources: list[SourceText]) -> RenderableType:
    if len(sources) == 1:
        return plain(sources[0].text.rstrip("\n"))
    return plain("\n".join(f"// {source.name}\n{source.text.rstrip()}\n" for source in sources))


def _flow(name: str, flow: FlowDetail, now: datetime) -> RenderableType:
    from rich.console import Group

    newest = next((version.version for version in flow.versions if version.flow_id == flow.id), None)
    rows: list[tuple[str, object]] = [
        ("version", f"{newest} of {len(flow.versions)}" if newest is not None else "not published"),
        ("digest", flow.id),
        ("stored", when(flow.created_at, now)),
        ("sources", ", ".join(source.name for source in flow.sources)),
        ("handlers", ", ".join(flow.event_facets) or "none needed"),
        ("strict", "yes" if flow.strict else "no"),
    ]
    parts: list[RenderableType] = [plain(name, "bold"), facts(rows), plain("\nWorkflows", "bold")]
    for workflow in flow.workflows:
        parts.append(plain(f"  {signature(workflow)}"))
        if workflow.doc:
            parts.append(plain(f"    {workflow.doc.strip()}", "dim"))
    return Group(*parts)


def signature(workflow: WorkflowSignature) -> str:
    """The declaration of a workflow: `shop.Checkout(order: Order, vip: Boolean = ...) => (receipt: String)`."""
    params = ", ".join(f"{param.name}: {param.type}{'' if param.required else ' = ...'}" for param in workflow.params)
    returns = ", ".join(f"{field.name}: {field.type}" for field in workflow.returns)
    return f"{workflow.name}({params})" + (f" => ({returns})" if returns else "")
