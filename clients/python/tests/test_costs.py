"""What a lock costs beside many others, and time limits that meet a cancellation."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import List

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from lockkit._clock import system_clock
from lockkit._renewer import Renewer
from moved import MovedClock
from proxy import Proxy
from server import PATIENCE, Server
from test_aio import until as until_async
from test_faults import renewed

HELD = 2_000


def test_a_pair_costs_as_much_beside_2000_held_locks(server: Server) -> None:
    async def pairs(locks: aio.Locks, many: int) -> float:
        begun = time.process_time()
        for _ in range(many):
            async with locks.mutex("pair"):
                pass
        return (time.process_time() - begun) / many

    async def main() -> List[float]:
        # Rounds in turn, so that a machine that stalls stalls both.
        ratios = []
        async with aio.connect(server.url) as few, aio.connect(server.url, ttl=3600) as many:
            limit = asyncio.Semaphore(50)

            async def take(number: int) -> aio.Guard:
                async with limit:
                    return await many.mutex(f"held/{number}").lock()

            held = await asyncio.gather(*(take(number) for number in range(HELD)))
            for _ in range(7):
                alone = await pairs(few, 60)
                ratios.append(await pairs(many, 60) / alone)
            assert all(it.is_valid() for it in held)
            await many.close(0)
        return ratios

    assert median(asyncio.run(main())) < 1.5


def test_stale_entries_are_at_most_twice_the_live_ones(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as locks:
            held = [await locks.mutex(f"held/{number}").lock() for number in range(10)]
            renewer: Renewer = locks._slot.engine()._renewer
            for _ in range(60):
                async with locks.mutex("pair"):
                    pass
                assert len(renewer._heap) <= 3 * (len(renewer._records) + 1)
            for lock in held:
                await lock.release()
            assert renewer._heap == [] and renewer._timer is None

    asyncio.run(main())


def test_locks_of_several_ttls_are_renewed_in_few_requests(connect: Connect, proxy: Proxy) -> None:
    clock = MovedClock()
    locks = connect(proxy.url, clock=clock)
    held = [locks.mutex(f"lock/{number}", ttl=600 + number).lock() for number in range(50)]
    clock.ahead += 201  # the first is due, and the last within a sixth of its own ttl
    renewed(held[0])
    (renewal,) = proxy.asked("/v1/renew")
    assert len(renewal["claims"]) == 50


@pytest.mark.parametrize("first", ["limit", "caller"])
def test_a_cancellation_in_the_same_turn_as_the_limit_is_not_swallowed(
    server: Server, proxy: Proxy, first: str
) -> None:
    rule = proxy.hold("/v1/acquire")
    clock = system_clock()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(proxy.url) as ours, aio.connect(server.url) as theirs:
            limit = 0.3
            task = asyncio.ensure_future(ours.mutex("a").try_lock_for(limit))
            begun = clock.now()
            assert await loop.run_in_executor(None, rule.reached.wait, PATIENCE)
            # Both are due before the loop turns again.
            (connection,) = ours._slot.engine()._transport._waits
            time.sleep(max(0.0, begun + limit + 0.05 - clock.now()))
            if first == "caller":
                task.cancel()
                connection.cancel()
            else:
                connection.cancel()
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            rule.go_on.set()

            async def free() -> bool:
                return not (await theirs.inspect("a")).queue

            await until_async(free)

    asyncio.run(main())


def test_a_limit_and_a_grant_in_one_turn_leave_no_lock(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with aio.connect(proxy.url) as ours, aio.connect(server.url) as theirs:
            for number in range(40):
                # About as long as a request takes: now it is in time, and now it is not.
                name = f"lock/{number}"
                lock = await ours.mutex(name).try_lock_for(0.0005 * (number % 20))
                del lock

            async def free() -> bool:
                return not await theirs.list()

            await until_async(free)

    asyncio.run(main())


def test_no_task_is_made_for_a_time_limit(connect: Connect, server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as locks:
            await locks.inspect("a")  # connects
            made: List[object] = []

            def factory(loop: asyncio.AbstractEventLoop, work: object, **options: object) -> object:
                made.append(work)
                return asyncio.Task(work, loop=loop)  # type: ignore[arg-type]

            asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]
            lock = await locks.mutex("b").try_lock_for(PATIENCE)
            assert lock is not None
            await lock.release()
            asyncio.get_running_loop().set_task_factory(None)
            assert made == []

    asyncio.run(main())
