"""All groups of calls on one engine, for one caller."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from treadle.api.face import Api
from treadle.engine import Engine
from treadle.model.access import Access

if TYPE_CHECKING:
    from treadle.service.approvals import Approvals
    from treadle.service.dead_letters import DeadLetters
    from treadle.service.dispatch import Dispatch
    from treadle.service.events import Events
    from treadle.service.external_jobs import ExternalJobs
    from treadle.service.flows import Flows
    from treadle.service.functions import Functions
    from treadle.service.handlers import Handlers
    from treadle.service.lists import Lists
    from treadle.service.objectives import Objectives
    from treadle.service.runs import Runs
    from treadle.service.schedules import Schedules
    from treadle.service.servers import Servers
    from treadle.service.steps import Steps
    from treadle.service.store import StoreCalls
    from treadle.service.system import System
    from treadle.service.tasks import Tasks
    from treadle.service.tokens import Tokens
    from treadle.service.watchers import Watchers
    from treadle.service.work import Work


class Service(Api):
    """The contract on an engine, as a caller with that access may use it. Groups are loaded when they are first used."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    @cached_property
    def approvals(self) -> Approvals:
        from treadle.service.approvals import Approvals

        return Approvals(self.engine, self.access)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        from treadle.service.dead_letters import DeadLetters

        return DeadLetters(self.engine, self.access)

    @cached_property
    def dispatch(self) -> Dispatch:
        from treadle.service.dispatch import Dispatch

        return Dispatch(self.engine, self.access)

    @cached_property
    def external_jobs(self) -> ExternalJobs:
        from treadle.service.external_jobs import ExternalJobs

        return ExternalJobs(self.engine, self.access)

    @cached_property
    def events(self) -> Events:
        from treadle.service.events import Events

        return Events(self.engine, self.access)

    @cached_property
    def flows(self) -> Flows:
        from treadle.service.flows import Flows

        return Flows(self.engine, self.access)

    @cached_property
    def functions(self) -> Functions:
        from treadle.service.functions import Functions

        return Functions(self.engine, self.access)

    @cached_property
    def handlers(self) -> Handlers:
        from treadle.service.handlers import Handlers

        return Handlers(self.engine, self.access)

    @cached_property
    def lists(self) -> Lists:
        from treadle.service.lists import Lists

        return Lists(self.engine, self.access)

    @cached_property
    def objectives(self) -> Objectives:
        from treadle.service.objectives import Objectives

        return Objectives(self.engine, self.access)

    @cached_property
    def runs(self) -> Runs:
        from treadle.service.runs import Runs

        return Runs(self.engine, self.access)

    @cached_property
    def schedules(self) -> Schedules:
        from treadle.service.schedules import Schedules

        return Schedules(self.engine, self.access)

    @cached_property
    def servers(self) -> Servers:
        from treadle.service.servers import Servers

        return Servers(self.engine, self.access)

    @cached_property
    def steps(self) -> Steps:
        from treadle.service.steps import Steps

        return Steps(self.engine, self.access)

    @cached_property
    def store(self) -> StoreCalls:
        from treadle.service.store import StoreCalls

        return StoreCalls(self.engine, self.access)

    @cached_property
    def tasks(self) -> Tasks:
        from treadle.service.tasks import Tasks

        return Tasks(self.engine, self.access)

    @cached_property
    def system(self) -> System:
        from treadle.service.system import System

        return System(self.engine, self.access)

    @cached_property
    def tokens(self) -> Tokens:
        from treadle.service.tokens import Tokens

        return Tokens(self.engine, self.access)

    @cached_property
    def watchers(self) -> Watchers:
        from treadle.service.watchers import Watchers

        return Watchers(self.engine, self.access)

    @cached_property
    def work(self) -> Work:
        from treadle.service.work import Work

        return Work(self.engine, self.access)
