"""Steps done by a model: the fallback of workers for event facets with a prompt block and without a handler.

`use_llm(engine)` enables it for the workers of an engine. The names are found in the flows of waiting tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.agents.step_log import StepLog
from treadle.kernel.runs.service import Runs
from treadle.kernel.store.queries import TaskFilter
from treadle.lang.nodes import Directive, Facet, Name, PromptBlock
from treadle.lang.program import Program
from treadle.llm.config import LLMConfig, LLMError, config_of, load_sdk, make_client, secrets_of
from treadle.llm.conversation import Conversation, as_text, fill
from treadle.llm.exchange import Exchange, OnText
from treadle.llm.ledger import Meter, meter_of_task, parse_prices
from treadle.llm.tools import Tools, make_toolbox
from treadle.model.clock import Clock
from treadle.model.errors import NotFound, TreadleError
from treadle.model.outcomes import Outcome, Waiting
from treadle.model.runs import TEXT
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import Json
from treadle.workers.call import outcome_of, outcome_of_error, stops_caller
from treadle.workers.context import Context, RegisteredHandler, make_handler
from treadle.workers.streams import StreamWriter

if TYPE_CHECKING:
    from treadle.engine import Engine

_SHOWN = 4000
_PIECE = 8000
"""Characters of one entry."""


class StepStream:
    """Updates one step: immediately for the first words, then at intervals, because each update is a commit."""

    def __init__(self, runs: Runs, clock: Clock, task: Task, every: float, tokens: StreamWriter | None = None) -> None:
        self._runs = runs
        self._clock = clock
        self._task = task
        self._every = every
        self._next_at = clock.monotonic()
        self._tokens = tokens
        self._written = ""

    async def show(self, text: str) -> None:
        """Show the end of the text. A step that no longer waits, or a store error, does not stop the response."""
        if self._tokens is not None:
            self._write(text.replace("\x00", ""), self._tokens)
        task, now = self._task, self._clock.monotonic()
        if now < self._next_at or task.run_id is None or task.step_id is None:
            return
        self._next_at = now + self._every
        try:
            await self._runs.update_step(task.run_id, task.step_id, {TEXT: text[-_SHOWN:].replace("\x00", "")})
        except TreadleError:
            return

    def _write(self, text: str, tokens: StreamWriter) -> None:
        """Write the text that is new; each message of the model begins on a new line."""
        if not text.startswith(self._written):
            tokens.write("\n")
            self._written = ""
        more = text[len(self._written) :]
        for start in range(0, len(more), _PIECE):
            tokens.write(more[start : start + _PIECE])
        self._written = text


_CHECKED_NAMES = 50
"""Names checked at one time."""
_NO_PROMPT_FOR = 10.0
"""Seconds for which a name is known to have no prompt."""
_ELSEWHERE_FOR = 5_000
"""Milliseconds after which a task without a prompt is released again: another worker may have a handler for it."""


class LLMService:
    """Asks a model for the returns of event facets, within the budget of their runs."""

    def __init__(
        self,
        engine: Engine,
        *,
        client: Any = None,
        tools: Tools | None = None,
        config: LLMConfig | None = None,
        concurrency: int = 16,
    ) -> None:
        self._engine = engine
        self._client = client
        self._exchange: tuple[asyncio.AbstractEventLoop, Exchange] | None = None
        self.tools = tools
        self.config = config or config_of(engine.kernel.settings)
        parse_prices(engine.kernel.settings.llm_prices)  # report invalid ones here
        self._concurrency = concurrency
        self._prompts: dict[str, RegisteredHandler] = {}
        self._no_prompts: dict[str, float] = {}
        """Names without a prompt, and when to check them again."""
        self._turn = 0

    # called by workers

    async def prepare(self, names: Sequence[str]) -> None:
        """Check which of the names belong to prompts, from the flow of a waiting task.

        It checks some names at a time, in turn; a name without a prompt is not checked again for a while.
        """
        now = self._engine.kernel.clock.monotonic()
        unknown = [name for name in names if name not in self._prompts and self._no_prompts.get(name, 0.0) <= now]
        self._turn = (self._turn + _CHECKED_NAMES) % max(len(unknown), 1) if len(unknown) > _CHECKED_NAMES else 0
        for name in [*unknown[self._turn :], *unknown[: self._turn]][:_CHECKED_NAMES]:
            waiting = TaskFilter(states=(TaskState.PENDING,), namespace=self._engine.kernel.settings.namespace, name=name)
            for task in await self._engine.kernel.store.tasks.list_matching(waiting, 1):
                facet = await self._facet(task)
                if facet is not None and facet[1].prompt is not None:
                    self._prompts[name] = make_handler(name, self.handle, concurrency=self._concurrency)
                else:
                    self._no_prompts[name] = now + _NO_PROMPT_FOR

    def find(self, name: str) -> RegisteredHandler | None:
        """Return the handler of a name that belongs to a prompt."""
        return self._prompts.get(name)

    def names(self) -> list[str]:
        """Return the prompts that are served."""
        return sorted(self._prompts)

    async def handle(self, payload: dict[str, Json], ctx: Context) -> Outcome:
        """Do one step; an error fails it with its own code."""
        declared = await self._facet(ctx.task)
        if declared is None or declared[1].prompt is None:
            ctx.log(f"{ctx.task.name} has no prompt in this flow, and no handler here", "warning")
            return Waiting(_ELSEWHERE_FOR)
        step_log = StepLog(ctx, self._engine.kernel.clock.monotonic)
        return step_log.end(await outcome_of_work(self.answer(*declared, payload, ctx)))

    # called by others

    @property
    def available(self) -> bool:
        """Whether there is a client, or a key to create one."""
        return self._client is not None or bool(self._engine.kernel.settings.anthropic_api_key)

    async def answer(
        self, program: Program, facet: Facet, payload: Mapping[str, Json], ctx: Context, *, description: str | None = None
    ) -> dict[str, Json]:
        """Return a facet's returns for a task; its run pays, and its step shows the progress."""
        task, name = ctx.task, self.config.stream
        kernel = self._engine.kernel
        meter = meter_of_task(kernel.settings, kernel.store, kernel.ids, task)
        tokens = ctx.stream(name) if name is not None and ctx.can_stream else None
        stream = StepStream(self._engine.kernel.runs, kernel.clock, task, self.config.stream_every, tokens)
        return await self.converse(program, facet, payload, meter, stream.show, description=description)

    async def converse(
        self,
        program: Program,
        facet: Facet,
        payload: Mapping[str, Json],
        meter: Meter,
        on_text: OnText | None = None,
        *,
        description: str | None = None,
    ) -> dict[str, Json]:
        """Return a facet's returns, by one conversation."""
        prompt = facet.prompt or PromptBlock((Directive(Name("template"), _default_template(facet, description)),))
        parts = (self.config.system_prompt, description if facet.prompt is not None else None, fill(prompt.system or "", payload))
        # without a prompt block, the arguments follow the purpose of the facet
        text = fill(prompt.template or "", payload) if facet.prompt else f"{prompt.template}\n{as_text(dict(payload))}"
        conversation = Conversation(
            self._sender(),
            self.config,
            make_toolbox(program, facet, self.tools),
            meter,
            prompt.model or self.config.model,
            "\n\n".join(part for part in parts if part),
            on_text,
        )
        return await conversation.run(text)

    def _sender(self) -> Exchange:
        """Return the exchange for the running event loop, to which a client created here belongs."""
        loop, engine = asyncio.get_running_loop(), self._engine
        if self._exchange is None or self._exchange[0] is not loop:
            client = self._client or make_client(engine.kernel.settings, self.config.timeout)
            secrets = secrets_of(client, engine.kernel.settings)
            self._exchange = (loop, Exchange(client, self.config, engine.kernel.clock.sleep, engine.kernel.ids.random, secrets))
        return self._exchange[1]

    async def _facet(self, task: Task) -> tuple[Program, Facet] | None:
        if task.flow_id is None:
            return None
        try:
            program = await self._engine.kernel.flows.program(task.flow_id)
        except NotFound:
            return None
        facet = program.find_facet(task.name)
        return None if facet is None else (program, facet)


async def outcome_of_work(work: Awaitable[Any]) -> Outcome:
    """Wait for a step's work, and return its outcome; errors of models keep their codes."""
    try:
        return outcome_of(await work)
    except LLMError as error:
        return error.outcome
    except BaseException as error:
        if stops_caller(error):
            raise
        return outcome_of_error(error)


def _default_template(facet: Facet, description: str | None) -> str:
    doc = facet.doc.description if facet.doc is not None else ""
    parts = (description, doc, f"Do the step {facet.qualified_name} with these parameters:")
    return "\n\n".join(part for part in parts if part)


def use_llm(engine: Engine, *, client: Any = None, tools: Tools | None = None, concurrency: int = 16, **options: Any) -> LLMService:
    """Let the workers of this engine do steps of event facets that have a prompt block and no handler.

    `client` is a client of the SDK (by default created from the settings), `tools` a `ToolRegistry` whose handlers the model may
    call; options are the fields of `LLMConfig`. Call it before `engine.worker()`.
    """
    if client is None:
        load_sdk()  # report a missing package here; importing it on the event loop would block that
    config = config_of(engine.kernel.settings, **options)
    service = LLMService(engine, client=client, tools=tools, config=config, concurrency=concurrency)
    engine.kernel.registry.fallback = service
    return service
