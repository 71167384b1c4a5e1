"""`treadle up`: one process that has everything: an up-to-date store, a worker, and HTTP."""

from __future__ import annotations

from typing import Annotated

from treadle.cli.command import option
from treadle.cli.crash import arm_crash
from treadle.cli.load import load_engines
from treadle.cli.serve import ForwardedAllow, Host, LogRequests, Port, http_options
from treadle.cli.session import Session
from treadle.cli.worker import (
    Concurrency,
    Grace,
    Isolated,
    Lease,
    Lists,
    Llm,
    Roles,
    ServerName,
    Threads,
    Topology,
    check_roles,
    run_worker,
    server_name,
)
from treadle.cli.worker_process import Serving
from treadle.model.names import DEFAULT_LIST, check_name


async def up(
    session: Session,
    handlers: Annotated[
        list[str] | None, option("--handlers", metavar="MODULE", help="package.module or path/to/file.py; may be repeated")
    ] = None,
    task_lists: Lists = None,
    concurrency: Concurrency = 100,
    threads: Threads = 16,
    isolated: Isolated = 4,
    lease: Lease = None,
    grace: Grace = 30,
    llm: Llm = False,
    name: ServerName = None,
    topology: Topology = None,
    roles: Roles = None,
    host: Host = None,
    port: Port = None,
    no_http: Annotated[bool, option("--no-http", help="Run the worker alone")] = False,
    forwarded_allow: ForwardedAllow = "",
    log_requests: LogRequests = False,
) -> None:
    """Start the engine: bring the store up to date, run a worker and serve HTTP until SIGTERM or Ctrl-C."""
    arm_crash(session.settings.crash_at)
    lists = tuple(check_name(each, "task list") for each in task_lists or [DEFAULT_LIST])
    engines = load_engines(session, handlers or [])
    options = Serving(
        lists,
        concurrency,
        threads,
        isolated,
        grace,
        lease,
        llm=llm,
        name=server_name(name),
        topology=topology,
        roles=check_roles(topology, roles),
        http=None if no_http else http_options(session, host, port, forwarded_allow, log_requests, grace, needed=False),
    )
    await run_worker(session, engines, options)
