"""All that takes text from outside, each as a function of bytes: it returns, or what its docstring says does not hold."""

from __future__ import annotations

from tests.fuzz.bodies import callback, github, request
from tests.fuzz.configuration import glob, requirement, setting, store_url, topology
from tests.fuzz.harness import Target
from tests.fuzz.language import afl, expression, program
from tests.fuzz.times import cron, duration, schedule
from tests.fuzz.values import encoded, payload, plan, signature

TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        afl,
        expression,
        program,
        cron,
        schedule,
        duration,
        store_url,
        topology,
        setting,
        glob,
        requirement,
        payload,
        plan,
        encoded,
        signature,
        github,
        callback,
        request,
    )
}
