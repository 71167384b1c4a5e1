"""Import a CSV file in chunks. Bad rows go to a second file, with reasons, to be repaired."""

import asyncio
import csv
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

from treadle import Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
DATABASE = "products.db"  # yours; not the file of the store
CHUNK = 1_000


def checked(row):
    """Return the product, or raise the reason for its rejection."""
    if not row["sku"]:
        raise ValueError("the sku is missing")
    return row["sku"], round(float(row["price"]) * 100)


@engine.handler("import.Chunk", retry=3)
def import_chunk(payload):
    """Import some rows in one transaction; a repetition replaces each row by its sku."""
    good, rejected = [], []
    with Path(payload["path"]).open(newline="") as file:
        for row in islice(csv.DictReader(file), payload["first"], payload["first"] + CHUNK):
            try:
                good.append(checked(row))
            except ValueError as error:
                rejected.append({**row, "reason": str(error)})
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute(
            "create table if not exists products (sku text primary key, cents integer)"
        )
        database.executemany("insert or replace into products values (?, ?)", good)
    return {"imported": len(good), "rejected": rejected}


def count_rows(path):
    with Path(path).open(newline="") as file:
        return sum(1 for _ in csv.DictReader(file))


def write_rejected(path, rows):
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@engine.function("import")
async def import_file(payload, ctx):
    path = payload["path"]
    rows = await ctx.step(count_rows, path)
    chunks = await ctx.gather(
        *(
            ctx.call("import.Chunk", {"path": path, "first": first})
            for first in range(0, rows, CHUNK)
        )
    )
    rejected = [row for chunk in chunks for row in chunk["rejected"]]
    result = {"imported": sum(chunk["imported"] for chunk in chunks), "rejected": len(rejected)}
    if rejected:
        result["file"] = f"{path.removesuffix('.csv')}.rejected.csv"
        await ctx.step(write_rejected, result["file"], rejected)
    return result


def repair(path):
    """A person does this, in an editor."""
    text = Path(path).read_text()
    print(text)
    Path(path).write_text(text.replace("cup,two", "cup,2").replace("\n,3", "\npot,3"))


async def main():
    async with engine, engine.worker():
        first = await (await engine.start(import_file, {"path": "products.csv"})).result()
        print(first)  # {'imported': 2, 'rejected': 2, 'file': 'products.rejected.csv'}
        repair(first["file"])
        # The repaired rows: {'imported': 2, 'rejected': 0}
        print(await (await engine.start(import_file, {"path": first["file"]})).result())


if __name__ == "__main__":
    Path("products.csv").write_text("sku,price\nlamp,20.50\ncup,two\n,3\ntea,4\n")
    asyncio.run(main())
