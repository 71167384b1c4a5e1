"""A step done by a model. A scripted server answers; without its two settings, the real one."""

import asyncio

from treadle import Engine
from treadle.llm import use_llm
from treadle.model.usage import total
from treadle.settings import Settings
from treadle.testing.llm import ModelServer, uses

FLOW = """
namespace desk {
  /** Sums a letter up.
   * @return summary in one sentence */
  event facet Summarize(letter: String) => (summary: String, urgent: Boolean) prompt {
    system "You work at a front desk."
    template "Letter: {letter}"
    model "claude-haiku-4-5"
  }

  workflow Sort(letter: String) => (summary: String) andThen {
    s = Summarize(letter = $.letter)
    yield Sort(summary = s.summary)
  }
}
"""


async def main(server: ModelServer) -> None:
    engine = Engine(
        "memory://", settings=Settings(anthropic_api_key="any", anthropic_base_url=server.url)
    )
    use_llm(engine, max_tokens=2000)
    async with engine, engine.worker():
        run = await engine.start(
            [("desk.afl", FLOW)], {"letter": "Dear all, ..."}, workflow="desk.Sort", budget=0.50
        )
        print(await run.result())
        spent = total(await engine.kernel.store.usage.list_requests(run.id))
        tokens = f"{spent.input_tokens} tokens in, {spent.output_tokens} out"
        print(f"${spent.cost_micros / 1e6} for {tokens}")


with ModelServer() as server:
    server.script(uses(("desk__Summarize", {"summary": "Nothing new.", "urgent": False})))
    asyncio.run(main(server))
