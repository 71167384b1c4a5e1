"""Tokens, sessions and requests of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from treadle.kernel.access.requests import Requests
    from treadle.kernel.access.sessions import Sessions
    from treadle.kernel.access.tokens import Tokens
    from treadle.wiring.engine import Engine


class AccessFace:
    """The part of an engine that is about who may do what; loaded when it is first used, as only servers need it."""

    _tokens: Tokens | None = None
    _sessions: Sessions | None = None

    @property
    def tokens(self) -> Tokens:
        """Tokens: create, list, revoke, and what who shows one may do."""
        if self._tokens is None:
            from treadle.kernel.access.tokens import Tokens

            engine = cast("Engine", self)
            self._tokens = Tokens(engine.store, engine.committer, engine.ids, engine.clock, namespace=engine.settings.namespace)
        return self._tokens

    @property
    def sessions(self) -> Sessions:
        """Sessions of people who have shown a token once."""
        if self._sessions is None:
            from treadle.kernel.access.sessions import Sessions

            engine = cast("Engine", self)
            self._sessions = Sessions(
                engine.store, engine.committer, engine.ids, engine.clock, self.tokens, namespace=engine.settings.namespace
            )
        return self._sessions

    @property
    def requests(self) -> Requests:
        """Requests with an idempotency key, and what they were answered with."""
        from treadle.kernel.access.requests import Requests

        engine = cast("Engine", self)
        return Requests(engine.store, engine.committer, engine.ids, namespace=engine.settings.namespace)
