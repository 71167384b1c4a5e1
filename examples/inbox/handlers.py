"""Import new files, and report on them."""

import csv
from pathlib import Path

from treadle import Engine

engine = Engine()


@engine.handler("import", retry=3)
def import_file(payload, ctx):
    """Count the rows of a file; a real handler would store them, once, under `ctx.task_id`."""
    change = payload["change"]
    with Path(change["path"]).open(newline="") as file:
        rows = sum(1 for _ in csv.reader(file))
    ctx.log(f"{change['name']}: {rows} rows", rows=rows)
    return {"name": change["name"], "rows": rows}


@engine.handler("report")
async def report(payload):
    """Return the date of the report."""
    return {"day": payload["tick"][:10]}
