"""`LLMHandler`: the same conversation as a plain handler, for pollers and for tasks outside workflows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.lang.nodes import Facet, FacetKind, Name, Param
from treadle.lang.program import Program
from treadle.llm.config import LLMConfig, LLMError, scrubbed, secrets_of
from treadle.llm.conversation import Conversation, as_text, fill
from treadle.llm.exchange import Exchange
from treadle.llm.ledger import NoMeter
from treadle.llm.tools import Tools, make_toolbox
from treadle.model.values import Json
from treadle.settings import Settings


class LLMHandler:
    """Answers payloads with a model: `poller.register("ns.Facet", handler.handle)`.

    `prompt_template` is filled from the payload (without it, the payload itself is the prompt). `returns` are the required
    fields of the answer, as AFL parameters; without them any object is accepted. With a `program`, the facet named by
    `_facet_name` in the payload defines both. It counts tokens, but has no budget: budgets belong to runs.
    """

    def __init__(
        self,
        client: Any,
        config: LLMConfig,
        *,
        tool_definitions: Sequence[Mapping[str, Any]] | None = None,
        tool_registry: Tools | None = None,
        prompt_template: str | None = None,
        name: str = "answer",
        returns: tuple[Param, ...] = (),
        program: Program | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._template = prompt_template
        self._facet = Facet(id=name, kind=FacetKind.EVENT, name=Name(name), returns=returns)
        self._program = program or Program(id="llm")
        self._registry = tool_registry
        self._defined = tuple(tool_definitions or ())
        self._runner: asyncio.Runner | None = None
        self._running = threading.Lock()
        self.meter = NoMeter()
        """Total usage so far."""

    def handle(self, payload: Mapping[str, Json]) -> dict[str, Json]:
        """Answer in this thread; blocks. One call at a time, because the client belongs to this handler's event loop."""
        with self._running:
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(self.handle_async(payload))

    def close(self) -> None:
        """Close the event loop of `handle`; idempotent."""
        with self._running:
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    async def handle_async(self, payload: Mapping[str, Json]) -> dict[str, Json]:
        """Return the answer, or raise `LLMError` with the code of the failure."""
        values = {name: value for name, value in payload.items() if not name.startswith("_")}
        facet = self._program.find_facet(str(payload.get("_facet_name"))) or self._facet
        ids = SystemIds()
        secrets = secrets_of(self._client, Settings())
        conversation = Conversation(
            Exchange(self._client, self._config, SystemClock().sleep, ids.random, secrets),
            self._config,
            make_toolbox(self._program, facet, self._registry, self._defined),
            self.meter,
            self._config.model,
            self._config.system_prompt or "",
        )
        prompt = as_text(values) if self._template is None else fill(self._template, values)
        try:
            return await conversation.run(prompt)
        except LLMError as error:
            raise LLMError(error.error_code, scrubbed(str(error), secrets)) from None
