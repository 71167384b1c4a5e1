"""Index a document after it has been quiet for a while: many changes, one execution."""

import asyncio

from treadle import Engine, SignalTimeout

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
QUIET, MAX_WAIT = 0.3, 30  # seconds without a change; limit on the wait for such a pause


async def index(document, text):
    print("index", document, text)


@engine.function("debounced.Index")
async def debounced(payload, ctx):
    """One run per document; it waits without a worker until a change arrives."""
    text = await ctx.wait_for("changed")
    began_at = ctx.now()
    while (left := MAX_WAIT - (ctx.now() - began_at).total_seconds()) > 0:
        try:
            text = await ctx.wait_for("changed", timeout=min(QUIET, left))
        except SignalTimeout:
            break
    await ctx.step(index, payload["document"], text, retry=5)
    await ctx.continue_as_new(payload)  # takes along the signals that have arrived meanwhile


def run_of(document):
    """Return the run of the document; the first call starts it."""
    return engine.start(
        debounced.with_options(idempotency_key=f"index-{document}"), {"document": document}
    )


async def changed(document, text):
    """Report a change, from any process."""
    run = await run_of(document)
    await run.signal("changed", text)


async def main():
    async with engine, engine.worker():
        for text in ("a", "ab", "abc"):
            await changed("notes", text)
        await asyncio.sleep(1)  # prints: index notes abc


if __name__ == "__main__":
    asyncio.run(main())
