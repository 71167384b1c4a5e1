"""Grants of each scope, names of tokens, and checks of an access."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treadle import Engine
from treadle.model.access import GRANTS, OPEN, Access, Scope, check_token_name, granted, parse_scopes
from treadle.model.errors import Forbidden, InvalidInput, ListForbidden, TooManyAttempts, TreadleError, Unauthorized

READ, ENQUEUE, WORK, APPROVE, OPERATE, PUBLISH, REGISTER, ADMIN = Scope

TABLE = {
    READ: {READ},
    ENQUEUE: {ENQUEUE},
    WORK: {WORK, ENQUEUE},
    APPROVE: {APPROVE, READ},
    OPERATE: {OPERATE, WORK, ENQUEUE, READ},
    PUBLISH: {PUBLISH, ENQUEUE, READ},
    REGISTER: {REGISTER, READ},
    ADMIN: {*Scope},
}


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("wanted", Scope)
def test_a_scope_grants_exactly_its_table_row(scope, wanted):
    access = Access("ada", granted([scope]))
    assert access.may(wanted) == (wanted in TABLE[scope])
    if access.may(wanted):
        access.check(wanted)
    else:
        with pytest.raises(Forbidden, match=f"scope {wanted},"):
            access.check(wanted)


def test_every_scope_has_its_grants_and_has_itself():
    assert set(GRANTS) == set(Scope)
    assert all(scope in GRANTS[scope] for scope in Scope)


def test_several_scopes_grant_their_union():
    assert granted([READ, WORK]) == {READ, WORK, ENQUEUE}
    assert granted([]) == frozenset()


def test_an_open_server_grants_every_scope_to_local():
    assert OPEN.actor == "local"
    assert all(OPEN.may(scope) for scope in Scope)
    assert OPEN.may_use("anything")


def test_an_access_without_task_lists_is_for_all_of_them():
    assert Access("ada", frozenset()).may_use("orders")
    held = Access("ada", frozenset(), ("orders", "mails"))
    assert (held.may_use("orders"), held.may_use("mails"), held.may_use("order")) == (True, True, False)
    held.check_list("orders")
    with pytest.raises(ListForbidden, match="invoices") as refused:
        held.check_list("invoices")
    assert (refused.value.code, refused.value.task_list) == ("list_forbidden", "invoices")


async def test_a_token_acts_under_its_name():
    async with Engine("memory://") as engine:
        token = await engine.kernel.tokens.create("ada", [OPERATE], expires=60, task_lists=["orders"], actor="root")
        access = await engine.kernel.tokens.find_access(token.secret)
    assert token.expires_at is not None
    scopes = frozenset({OPERATE, WORK, ENQUEUE, READ})
    assert access == Access("ada", scopes, ("orders",), token.id, token.expires_at.ms)


def test_scopes_are_deduplicated_and_ordered():
    assert parse_scopes(["work", "read", WORK]) == (READ, WORK)
    assert parse_scopes("admin") == (ADMIN,)


@pytest.mark.parametrize("given", [[], ["root"], ["read", "Read"], [""], [None], [7]])
def test_unknown_scopes_and_none_at_all_are_refused(given):
    with pytest.raises(InvalidInput, match="scope"):
        parse_scopes(given)


@pytest.mark.parametrize("name", ["ci", "ada@example.org", "team/deploy", "grafana-2", "é", "x" * 100])
def test_names_of_people_and_programs_are_names_of_tokens(name):
    assert check_token_name(name) == name


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "\x1b[31m", "x" * 101, None, "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"])
def test_invalid_token_names_and_ids_are_refused(name):
    with pytest.raises(InvalidInput, match="token name"):
        check_token_name(name)


def test_a_refusal_does_not_reveal_its_reason():
    errors = [Unauthorized(reason) for reason in ("missing", "malformed", "unknown", "expired", "revoked")]
    assert len({(str(error), repr(error), error.code) for error in errors}) == 1
    assert len({error.reason for error in errors}) == 5


def test_too_many_attempts_carries_a_retry_after():
    error = TooManyAttempts(1_500)
    assert (error.code, error.retry_after) == ("too_many_attempts", 1_500)
    assert "in 2 s" in str(error)
    assert isinstance(error, TreadleError)


def test_the_documented_scopes_are_these():
    """The table in docs/explanation/security.md lists every scope, with all that it includes, in this order."""
    page = Path(__file__).parents[2].joinpath("docs/explanation/security.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\| \S", page, re.MULTILINE)
    documented = {
        scope: set(Scope) - {scope} if "all" in includes else set(re.findall(r"`(\w+)`", includes)) for scope, includes in rows
    }
    assert documented == {scope: {*GRANTS[scope]} - {scope} for scope in Scope}
    assert list(documented) == [*Scope]
