"""Calls about tokens, on an engine and over HTTP."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import Forbidden, InvalidInput, Unauthorized


async def test_a_token_is_made_shown_without_its_secret_and_revoked(scene: Scene):
    made = await scene.api.tokens.create("ci", ["work", "read"], expires=3600, task_lists=["night"])
    assert (made.name, made.scopes, made.task_lists, made.state) == ("ci", ["read", "work"], ["night"], "active")
    assert made.expires_at is not None
    assert made.secret not in repr(made)
    access = await scene.engine.kernel.tokens.find_access(made.secret)
    assert (access.actor, access.task_lists) == ("ci", ("night",))
    (listed,) = (await scene.api.tokens.list()).tokens
    assert (listed.id, listed.created_by, hasattr(listed, "secret")) == (made.id, "local", False)
    assert (await scene.api.tokens.revoke("ci")).state == "revoked"
    with pytest.raises(Unauthorized):
        await scene.engine.kernel.tokens.find_access(made.secret)
    assert (await scene.api.tokens.list()).tokens == []
    assert [each.state for each in (await scene.api.tokens.list(every=True)).tokens] == ["revoked"]


async def test_invalid_arguments_are_rejected(scene: Scene):
    tokens = scene.api.tokens
    with pytest.raises(InvalidInput, match="scope"):
        await tokens.create("ci", ["everything"])
    with pytest.raises(InvalidInput, match="admin"):
        await tokens.create("ci", ["admin"], task_lists=["night"])
    await tokens.create("ci", ["read"])
    with raises_code("token_exists"):
        await tokens.create("ci", ["read"])
    with raises_code("token_not_found"):
        await tokens.revoke("nobody")


async def test_only_admins_see_and_make_tokens(scene: Scene):
    tokens = Operations(scene.engine, Access("ada", frozenset(Scope) - {Scope.ADMIN})).tokens
    with pytest.raises(Forbidden):
        await tokens.list()
    with pytest.raises(Forbidden):
        await tokens.create("more", ["admin"])
    with pytest.raises(Forbidden):
        await tokens.revoke("ada")
