"""`treadle compile`: are these sources a program, and which?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.cli.command import option
from treadle.cli.exits import BAD_INPUT, printable
from treadle.cli.format import plain
from treadle.cli.session import Session
from treadle.cli.sources import Files, read_sources
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.lang import Compiled


def compile_files(
    session: Session,
    files: Files,
    check: Annotated[bool, option("--check", help="Only diagnostics: no program in the output of --json")] = False,
    strict: Annotated[bool, option("--strict", help="Warnings count as errors")] = False,
    output: Annotated[str | None, option("--output", "-o", metavar="FILE", help="Write the program as JSON; - is stdout")] = None,
) -> None:
    """Compile AFL sources together; all diagnostics at once, and exit 2 if there is an error."""
    from treadle.lang import compile_sources  # the parser is loaded by those who compile

    if check and output is not None:
        raise InvalidInput("Give either --check or --output, not both.")
    compiled = compile_sources(read_sources(files))
    ok = compiled.ok and not (strict and compiled.warnings)
    if not session.json:
        tell_diagnostics(compiled)
    if ok and output is not None:
        _write(output, compiled.program)
    if output != "-":
        session.show(_as_json(compiled, ok, with_program=not check and output is None), lambda: _summary(compiled, ok))
    if not ok:
        raise Exit(BAD_INPUT)


def tell_diagnostics(compiled: Compiled) -> None:
    """All diagnostics for people, on stderr."""
    for diagnostic in compiled.diagnostics:
        sys.stderr.write(printable(diagnostic.render()) + "\n\n")
    sys.stderr.flush()


def _as_json(compiled: Compiled, ok: bool, *, with_program: bool) -> dict[str, Json]:
    from treadle.lang import Program

    value: dict[str, Json] = {
        "ok": ok,
        "digest": compiled.digest or None,
        "diagnostics": [each.as_json() for each in compiled.diagnostics],
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


def _write(output: str, program: dict[str, Json]) -> None:
    text = json.dumps(program, ensure_ascii=False, indent=2) + "\n"
    if output == "-":
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror}.") from None
