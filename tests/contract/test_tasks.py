"""The contract of tasks on SQLite in memory, among the tests that run before a branch lands: the fast part of the whole suite."""

from tests.contract.test_store_contract import TestSqliteMemory as _Suite

_FEATURES = ("claims", "commits", "inserts")


class TestTasks(_Suite):
    """The tests of the suite that are about claims, commits and inserts."""


for _name in [name for name in dir(_Suite) if name.startswith("test_")]:
    if getattr(_Suite, _name).__module__.rpartition(".")[2] not in _FEATURES:
        setattr(TestTasks, _name, None)
