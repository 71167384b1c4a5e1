"""Execution of one command line: its exit code, and each error as one line or a JSON object."""

from __future__ import annotations

import os

import click

from treadle.interfaces.cli.app import make_app
from treadle.interfaces.cli.messages import BAD_INPUT, BUG, INTERRUPTED, exit_code_of, print_error, print_flow_error
from treadle.model.errors import InvalidFlow, NonRetryable, TreadleError

_SHOWN = 200
"""Characters of a file name in a message."""


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit code; each error is one line (or a JSON object) on stderr."""
    as_json = "--json" in arguments
    verbose = "--verbose" in arguments or "-v" in arguments
    try:
        code = make_app().main(arguments, prog_name="treadle", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TreadleError as error:
        if verbose and error.__cause__ is not None:
            import traceback

            traceback.print_exception(error.__cause__)
        if isinstance(error, InvalidFlow):
            print_flow_error(error, as_json=as_json)
        else:
            code = error.error_code if isinstance(error, NonRetryable) else error.code  # the code that a task would fail with
            print_error(code, str(error), as_json=as_json)
        return exit_code_of(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        message = error.format_message().strip()
        message = message if message.endswith("?") else f"{message.rstrip('.')}."
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        print_error("usage", f"{message} Try: {ctx.command_path if ctx else 'treadle'} --help", as_json=as_json)
        return error.exit_code
    except Exception as error:
        if (reason := _file_trouble(error)) is not None:
            print_error("file_unusable", reason, as_json=as_json)
            return BAD_INPUT
        if verbose:
            import traceback

            traceback.print_exc()
        hint = "" if verbose else " --verbose shows the traceback."
        print_error(
            "internal", f"{type(error).__name__}: {error}. This is a bug in Treadle; please report it.{hint}", as_json=as_json
        )
        return BUG


def _file_trouble(error: Exception) -> str | None:
    """The reason why the system does not accept the name of a file, or access to it; None for other errors."""
    if isinstance(error, OSError) and error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        return f"{name if len(name) <= _SHOWN else f'{name[:_SHOWN]}...'} cannot be used: {error.strerror}."
    if isinstance(error, UnicodeEncodeError):
        return "The name of a file is not valid UTF-8."
    return None
