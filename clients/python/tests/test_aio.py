"""The same for asyncio, and what is different there: cancellation, and a loop that is blocked."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, Coroutine, List

import pytest

import lockkit
from lockkit import aio
from moved import MovedClock
from proxy import Proxy
from server import PATIENCE, Server


async def until(holds: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Returns once this holds; fails when it takes much too long."""
    end = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < end, "this never came"
        await asyncio.sleep(0.01)


def test_each_primitive_works_as_its_counterpart_for_threads(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            handle = ours.mutex("a")
            async with handle as lock:
                token = lock.token
                assert await theirs.mutex("a").try_lock() is None
                assert await theirs.mutex("a").try_lock_for(0.01) is None
            later = await theirs.mutex("a").lock()
            assert later.token > token
            await later.release()
            async with ours.rwlock("config").write() as lock:
                assert await theirs.rwlock("config").try_read() is None
                await lock.downgrade()
                async with theirs.rwlock("config").read() as reader:
                    await reader.verify()
            async with ours.semaphore("importers", 2).acquire() as permit:
                assert permit.mode == "permits"
                assert await theirs.semaphore("importers", 2).available_permits() == 1
            register = ours.register("cursor")
            async with ours.mutex("a") as lock:
                await register.put("1", lock=lock)
            entry = await theirs.register("cursor").get()
            assert entry is not None and entry.value == b"1"
            await register.delete(expect=entry)
            with pytest.raises(lockkit.Conflict):
                await register.put("2", expect=entry)
            assert [it.name for it in await ours.list()] == []

    asyncio.run(main())


def test_election_and_once(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            async with ours.election("shard", value="here").campaign():
                leader = await theirs.election("shard").leader()
                assert leader is not None and leader.note == "here"
                async for seen in theirs.election("shard").observe():
                    assert seen.token == leader.token
                    break

            async def work(lock: aio.Guard) -> str:
                await asyncio.sleep(0)
                return f"under {lock.token}"

            once = [locks.once("job") for locks in (ours, theirs)]
            first, second = await asyncio.gather(*(it.run(work) for it in once))
            assert first == second and first.value == f"under {first.token}".encode()
            await once[0].forget()
            assert await once[1].decision() is None

    asyncio.run(main())


def test_many_tasks_take_turns(server: Server) -> None:
    async def main() -> List[int]:
        tokens: List[int] = []
        async with aio.connect(server.url) as locks:

            async def work(number: int) -> None:
                async with locks.mutex(f"lock/{number % 50}") as lock:
                    tokens.append(lock.token)

            await asyncio.gather(*(work(number) for number in range(200)))
        return tokens

    assert len(asyncio.run(main())) == 200


def test_a_task_that_is_cancelled_while_it_waits_leaves_no_claim(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            async with ours.mutex("a"):

                async def lock() -> None:
                    await theirs.mutex("a").lock()

                async def waiters() -> bool:
                    return bool((await ours.inspect("a")).waiters)

                async def nobody() -> bool:
                    return not await waiters()

                task = asyncio.ensure_future(lock())
                await until(waiters)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(nobody)

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_is_granted_leaves_no_claim(
    server: Server, proxy: Proxy
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(proxy.url) as ours, aio.connect(server.url) as theirs:
            rule = proxy.hold("/v1/acquire")

            async def lock() -> None:
                await ours.mutex("a").lock()

            async def nobody() -> bool:
                return not (await theirs.inspect("a")).queue

            task = asyncio.ensure_future(lock())
            assert await loop.run_in_executor(None, rule.reached.wait, PATIENCE)
            assert not await nobody()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(nobody)

    asyncio.run(main())


def test_a_downgrade_that_is_cancelled_gives_the_lock_back(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(proxy.url) as ours, aio.connect(server.url) as theirs:
            lock = await ours.rwlock("a").write()
            rule = proxy.hold("/v1/downgrade")
            task = asyncio.ensure_future(lock.downgrade())
            assert await loop.run_in_executor(None, rule.reached.wait, PATIENCE)
            # The backend has done it: others read.
            reader = await theirs.rwlock("a").try_read()
            assert reader is not None
            token = reader.token
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not lock.is_valid()
            with pytest.raises(lockkit.LockReleased):
                await ours.register("cursor").put("1", lock=lock)

            async def only_the_reader() -> bool:
                return [it.token for it in (await theirs.inspect("a")).queue] == [token]

            await until(only_the_reader)

    asyncio.run(main())


def test_work_is_cancelled_when_its_lock_is_lost(server: Server) -> None:
    async def main() -> List[str]:
        said: List[str] = []
        async with aio.connect(server.url, ttl=6) as ours, aio.connect(server.url) as theirs:

            async def work(lock: aio.Guard) -> None:
                lock.on_lost(lambda reason: said.append(reason.name))
                await theirs.break_lock("a", lock.token, force=True, reason="stuck")
                try:
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    said.append("cancelled")
                    raise

            with pytest.raises(lockkit.LockLost):
                await ours.mutex("a").run(work)
            assert "cancelled" in said, "it has ended before the lock is given back"

            async def quick(lock: aio.Guard) -> int:
                return lock.token

            assert await ours.mutex("a").run(quick) > 0
        return said

    assert sorted(asyncio.run(main())) in (["BROKEN", "cancelled"], ["VANISHED", "cancelled"])


def test_a_lock_is_held_until_work_that_is_cancelled_twice_has_ended(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            begun, undoing, again, undone = (asyncio.Event() for _ in range(4))

            async def work(lock: aio.Guard) -> str:
                begun.set()
                try:
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    undoing.set()
                    while not undone.is_set():
                        try:
                            await undone.wait()
                        except asyncio.CancelledError:
                            again.set()
                return "undone"

            runs: List[Callable[..., Any]] = [ours.mutex("a").run, ours.once("a").run]
            for run in runs:
                for event in (begun, undoing, again, undone):
                    event.clear()
                task: "asyncio.Future[Any]" = asyncio.ensure_future(run(work))
                await begun.wait()
                task.cancel()
                await undoing.wait()
                task.cancel()
                cancelled = asyncio.ensure_future(again.wait())
                both = {task, cancelled}
                await asyncio.wait(both, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                held = len((await theirs.inspect("a")).queue)
                undone.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert again.is_set() and held == 1
                # A release that is cancelled goes on in the background.
                async with theirs.mutex("a"):
                    pass

    asyncio.run(main())


def test_a_loop_that_was_blocked_sees_the_loss_at_once(server: Server) -> None:
    clock = MovedClock()

    async def main() -> None:
        async with aio.connect(server.url, clock=clock) as locks:
            lock = await locks.mutex("a").lock()
            clock.ahead += 30  # as time.sleep(30) in a coroutine
            assert not lock.is_valid() and lock.lost.is_set()
            with pytest.raises(lockkit.LockLost):
                lock.token
            assert await lock.lost.wait() is lockkit.LossReason.EXPIRED

    asyncio.run(main())


def test_locks_belong_to_one_event_loop(server: Server) -> None:
    locks = aio.connect(server.url)

    async def main() -> None:
        assert await locks.inspect("a")

    asyncio.run(main())
    with pytest.raises(lockkit.Closed):
        asyncio.run(main())
