import asyncio

from treadle import Engine

FLOW = """
namespace imports {
    schema Failure { index: Long, item: Json, error: String, error_type: String }
    event facet Import(row: Json) => (id: Long)

    facet All(rows: [Json]) => (ids: [Long] = [], failed: [Failure])
    andThen foreach row in $.rows collectErrors(failed) {
        one = Import(row = row) with Retry(maxAttempts = 2, delay = 0)
        yield All(ids = [one.id])
    }

    workflow Nightly(rows: [Json]) => (ids: [Long], failed: [Failure]) andThen {
        all = All(rows = $.rows)
        yield Nightly(ids = all.ids, failed = all.failed)
    }
}
"""
engine = Engine("memory://")


@engine.handler("imports.Import")
async def import_row(payload):
    return {"id": int(payload["row"]["id"])}


async def main():
    async with engine, engine.worker():
        rows = [{"id": "1"}, {"id": "two"}, {"id": "3"}]
        run = await engine.start(
            [("imports.afl", FLOW)], {"rows": rows}, workflow="imports.Nightly"
        )
        outputs = await run.result()
        assert outputs["ids"] == [1, 3]
        (failure,) = outputs["failed"]
        assert (failure["index"], failure["item"], failure["error_type"]) == (
            1,
            {"id": "two"},
            "ValueError",
        )


asyncio.run(main())
