"""persist-queue on SQLite: `SQLiteAckQueue`, taken and acknowledged one by one, as its documentation shows.

Write-ahead log and fsync are its defaults. Its locks and its waiting are those of one process: with two, both take the same item,
and none is told of what the other puts in; so it is measured with one worker process, and not idle. What is acknowledged stays
until `clear_acked_data`, which is called after every 1,000 as each take looks at all that is left.
"""

from __future__ import annotations

from pathlib import Path

from persistqueue import Empty, SQLiteAckQueue

from bench.peers.subjects import protocol


def _queue(url: str, name: str = "bench") -> SQLiteAckQueue:
    path = Path(url.removeprefix("sqlite:///"))
    return SQLiteAckQueue(str(path.parent), db_file_name=path.name, name=name, multithreading=True)


def prepare(url: str) -> None:
    _queue(url)


def fill(url: str, name: str, count: int) -> None:
    queue = _queue(url)
    with queue._putter as transaction:
        statement = queue._sql_insert
        transaction.executemany(statement, ((queue._serializer.dumps({"name": name}), 0.0) for _ in range(count)))


def enqueue(url: str, seconds: float) -> None:
    queue = _queue(url, "requeued")
    protocol.enqueue_for(seconds, lambda: queue.put({"name": "noop"}))
    protocol.enqueue_in_threads(seconds, lambda: queue.put({"name": "noop"}))


def work(url: str) -> None:
    protocol.ready()
    queue = _queue(url)
    protocol.started()
    done = 0
    while True:
        try:
            item = queue.get(block=False, raw=True)
        except Empty:
            item = queue.get(raw=True)
        queue.ack(id=item["pqid"])
        done += 1
        if not done % 1000:
            queue.clear_acked_data(max_delete=1000, keep_latest=0)


def watch(url: str, name: str, seconds: float) -> None:
    protocol.watch_sqlite(url, seconds, "from ack_queue_bench where status <> 5")


if __name__ == "__main__":
    protocol.main(globals())
