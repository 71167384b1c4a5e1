"""`treadle token ...`: tokens of the server, with their scopes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import ms, plain
from treadle.interfaces.cli.messages import tell_note
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.values import seconds
from treadle.model.access import check_token_name, parse_scopes
from treadle.model.clock import as_text

if TYPE_CHECKING:
    pass

_SCOPES = (
    "Scope: read, enqueue, work (includes enqueue), approve (read), operate (read, work), publish (read, enqueue), register (read) "
    "or admin (everything); repeatable"
)


async def create(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="Name recorded in the log, such as ci or ada@example.org")],
    scopes: Annotated[list[str], option("--scope", metavar="SCOPE", help=_SCOPES)],
    expires: Annotated[
        str | None, option(metavar="DURATION", help="Lifetime, e.g. 12h or 30d; default: until it is revoked")
    ] = None,
    lists: Annotated[
        list[str] | None, option("--list", metavar="LIST", help="Restrict it to this task list; repeatable; default: all")
    ] = None,
) -> None:
    """Create a token and print its secret, which is shown only once; stdout contains only the secret."""
    valid_for = seconds(expires, "--expires")

    def check(_: object) -> None:
        check_token_name(name)
        parse_scopes(scopes)

    async with session.api(migrate=True, first=check) as api:
        made = await api.tokens.create(name, scopes, expires=valid_for, task_lists=lists or ())
    if session.json:
        session.show(made, lambda: plain(""))
        return
    sys.stdout.write(made.secret + "\n")
    sys.stdout.flush()
    until = f" until {as_text(ms(made.expires_at))}" if made.expires_at else ""
    tell_note(
        f"Token {name} ({', '.join(made.scopes)}) is valid{until}. Save its secret now: it is not stored and cannot be shown "
        "again. Callers send it as `Authorization: Bearer SECRET`."
    )
