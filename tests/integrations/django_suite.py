"""Run the tests of Django's own task framework with a backend in place of Django's dummy backend, and print the tests that fail.

`python -m tests.integrations.django_suite FOLDER dummy|treadle`: the folder has `tests/tasks` of Django's sources.
"""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from pathlib import Path

import django
from django.conf import settings

DUMMY = "django.tasks.backends.dummy"
MODULES = ("test_tasks", "test_dummy_backend")
BACKEND = '''\
from treadle.integrations.django import TreadleBackend

class DummyBackend(TreadleBackend):
    """The backend, with the list and the method of Django's dummy backend that the tests use."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.results = []

    def enqueue(self, task, args, kwargs):
        self.results.append(super().enqueue(task, args, kwargs))
        return self.results[-1]

    def clear(self):
        self.results.clear()
'''


def adapted(source: str, backend: str) -> str:
    """The source of a module for that backend, and for the framework that is installed."""
    if backend == "treadle":
        source = source.replace(DUMMY, "tasks.backend")
    return source if django.VERSION >= (6,) else source.replace("django.tasks", "django_tasks")


def failures(folder: Path, backend: str) -> list[str]:
    """The names of the tests that fail."""
    package = folder / "tasks"
    package.mkdir()
    for path in (folder / "tests" / "tasks").glob("*.py"):
        (package / path.name).write_text(adapted(path.read_text(), backend))
    (package / "backend.py").write_text(BACKEND)
    sys.path.insert(0, str(folder))
    load = unittest.defaultTestLoader.loadTestsFromModule
    suite = unittest.TestSuite(load(importlib.import_module(f"tasks.{module}")) for module in MODULES)
    result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
    failed = [getattr(test, "test_case", test).id() for test, _ in [*result.failures, *result.errors]]
    return sorted({name.removeprefix("tasks.") for name in failed})


if __name__ == "__main__":
    place = Path(sys.argv[1])
    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    settings.configure(DATABASES=databases, TREADLE={"STORE": f"sqlite:///{place / 'treadle.db'}"})
    django.setup()
    if django.VERSION < (6,):
        exceptions = importlib.import_module("django_tasks.exceptions")
        exceptions.InvalidTask, exceptions.InvalidTaskBackend = exceptions.InvalidTaskError, exceptions.InvalidTaskBackendError
    print(json.dumps(failures(place, sys.argv[2])))
