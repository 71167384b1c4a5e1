"""Every command that a message, a hint, a page or a document names is accepted by the real command line, as written."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click

from treadle.interfaces.cli.app import make_app

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "treadle"
_SPAN = re.compile(r"`treadle ([a-z][^`]*)`")
_LINE = re.compile(r"^ *(?:\$ |> )?treadle ([a-z].*)$", re.MULTILINE)
_SHOWN = re.compile(r"""<code>treadle ([^<]*)</code>|"treadle ([^"]*)\"""")
_OPTIONAL = re.compile(r"\s*(?:\[[^\]]*\]|\.\.\.|…)")


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a file: all of it, or the strings of a module, with `1` for each formatted value."""
    if path.suffix != ".py":
        yield path.read_text("utf-8")
        return
    inner: set[int] = set()
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if "`treadle" in text else ():
        if isinstance(node, ast.JoinedStr):
            inner |= {id(each) for each in node.values}
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "1" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def _named() -> Iterator[tuple[str, str]]:
    """Yield each command with the file that names it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), *SOURCES.rglob("*.html")]
    for path in [*pages, *SOURCES.rglob("*.py")]:
        for text in texts_of(path):
            whole = re.sub(r"\{\{.*?\}\}", "1", text).replace("\\\n", " ")
            found = _SPAN.findall(whole)
            if path.suffix == ".md":
                found += _LINE.findall(whole)
            if path.suffix == ".html":
                found += ["".join(each) for each in _SHOWN.findall(whole)]
            for span in found:
                if not span.endswith("[OPTIONS]"):  # a title of the reference
                    yield " ".join(span.split()), str(path.relative_to(ROOT))


def _parse(words: list[str]) -> None:
    """Parse like the command line, without running anything; a bare name of a command or group is only a name."""
    command: click.Command = make_app()
    context = click.Context(command, info_name="treadle")
    while isinstance(command, click.Group):
        if not words or words[0] == "1":  # the command itself is a formatted value
            return
        parser = command.make_parser(context)
        parser.allow_interspersed_args = False
        _, words, _ = parser.parse_args(list(words))
        if not words:  # a group with an option of its own
            return
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    if words:
        command.make_context(command.name, words, parent=context.parent)


def _words(line: str) -> list[str]:
    """The words of a command up to the first operator of the shell, such as a pipe; not inside quotes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;<(")
    lexer.whitespace_split = True
    return list(takewhile(lambda word: word[0] not in "|>&;<(" if word else True, lexer))


def check_command(line: str) -> None:
    """Parse a command as written, or raise Click's error."""
    words = _words(re.sub(r"\b(\w+)\|[\w|-]+", r"\1", _OPTIONAL.sub("", line)))
    try:
        _parse(["1" if word in ("N", "R") else word for word in words])
    except click.exceptions.Exit:  # --help or --version
        return


def test_every_named_command_is_accepted_as_written() -> None:
    wrong, named = [], dict(_named())
    assert len(named) > 300
    for line, place in named.items():
        try:
            check_command(line)
        except click.ClickException as error:
            wrong.append(f"{place}: treadle {line}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)
