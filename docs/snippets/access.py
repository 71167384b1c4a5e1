import asyncio

from treadle import Engine, Unauthorized
from treadle.model.access import Scope


async def main():
    async with Engine("memory://") as engine:
        made = await engine.kernel.tokens.create(
            "ci", [Scope.WORK], expires=30 * 86_400, task_lists=["orders"], actor="ada"
        )
        access = await engine.kernel.tokens.find_access(made.secret)  # what the caller showed
        assert (access.actor, access.may(Scope.WORK), access.may(Scope.READ)) == (
            "ci",
            True,
            False,
        )
        access.check_list("orders")  # or ListForbidden

        # the secret is shown once, the cookie from then on
        opened = await engine.kernel.sessions.open(made.secret)
        found = await engine.kernel.sessions.find(opened.cookie)
        assert found.accepts(opened.csrf)

        await engine.kernel.tokens.revoke("ci", actor="ada")
        try:
            await engine.kernel.sessions.find(opened.cookie)
        except Unauthorized as refused:
            print(refused.reason)  # "revoked": for your log; its words tell the caller nothing


asyncio.run(main())
