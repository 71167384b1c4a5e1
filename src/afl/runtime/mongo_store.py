"""`MongoStore`: the store in `TREADLE_STORE`, for agents that were written for MongoDB."""

from dataclasses import replace

from treadle.agents import Persistence
from treadle.model.errors import InvalidStoreUrl
from treadle.settings import chosen_store, load_settings

DATABASE = "afl"
"""The database of the reference, which stands for the namespace of the settings."""


class MongoStore(Persistence):
    """Opens the store in `TREADLE_STORE`, which takes precedence over the connection string, with a namespace for each database.

    The database `afl` is the namespace of the settings; any other name is a namespace. A connection string may be the URL of a
    Treadle store; `mongodb://` alone, and no store at all, raise `InvalidStoreUrl`.
    """

    def __init__(self, connection_string: str | None = None, database_name: str = DATABASE) -> None:
        url, settings = chosen_store() or connection_string, load_settings()
        if not url:
            raise InvalidStoreUrl("A MongoStore needs a store: set TREADLE_STORE, for example to sqlite:///treadle.db.")
        super().__init__(url, settings=settings if database_name == DATABASE else replace(settings, namespace=database_name))
