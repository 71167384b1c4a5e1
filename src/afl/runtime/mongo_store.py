"""`MongoStore`: the store in `TREADLE_STORE`, for agents that were written for MongoDB."""

from treadle.agents import Persistence
from treadle.settings import chosen_store


class MongoStore(Persistence):
    """Opens the store in `TREADLE_STORE`, which takes precedence over the connection string; without both, `sqlite:///treadle.db`.

    A connection string may be the URL of a Treadle store; `mongodb://` alone raises `InvalidStoreUrl`.
    """

    def __init__(self, connection_string: str | None = None, database_name: str = "afl") -> None:
        super().__init__(chosen_store() or connection_string)
