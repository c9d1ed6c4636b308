"""Blocks that are entered here and left there, with a handle that several use."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, List, Tuple

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from moved import MovedClock
from server import Server
from test_aio import until as until_async
from waiting import until


def test_what_was_released_or_lost_is_not_entered_again(connect: Connect) -> None:
    clock = MovedClock()
    locks = connect(clock=clock)
    guards: List[Any] = [locks.mutex("a").lock(), locks.slots("gpu", 2).acquire()]
    for guard in guards:
        with guard:
            assert guard.is_valid()
        with pytest.raises(lockkit.LockReleased):
            with guard:
                raise AssertionError("this is not under the lock")
    guard = locks.mutex("a").lock()
    clock.ahead += 60
    with pytest.raises(lockkit.LockLost):
        with guard:
            raise AssertionError("this is not under the lock")


@pytest.fixture
def threads() -> Iterator[Tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """Two threads, each of which does what it is given."""
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        yield first, second


Threads = Tuple[ThreadPoolExecutor, ThreadPoolExecutor]


def held(handle: lockkit.Mutex) -> Iterator[lockkit.Guard]:
    """A dependency, as FastAPI has it: each step may run in another thread."""
    with handle as lock:
        yield lock


def begin(thread: ThreadPoolExecutor, dependency: Iterator[lockkit.Guard]) -> lockkit.Guard:
    return thread.submit(lambda: next(dependency)).result()


def end(thread: ThreadPoolExecutor, dependency: Iterator[lockkit.Guard]) -> None:
    assert thread.submit(lambda: next(dependency, None)).result() is None


def test_a_generator_entered_in_one_thread_is_left_in_another(
    connect: Connect, threads: Threads
) -> None:
    handle, watching = connect().mutex("a"), connect()
    for _ in range(3):
        dependency = held(handle)
        lock = begin(threads[0], dependency)
        assert lock.is_valid()
        end(threads[1], dependency)
        assert watching.inspect("a").queue == ()
        with pytest.raises(lockkit.LockReleased):
            lock.token


def test_leaving_there_does_not_release_what_another_entered_there(
    connect: Connect, threads: Threads
) -> None:
    handle, watching = connect().mutex("a"), connect()
    first = held(handle)
    lost = begin(threads[0], first)
    watching.break_lock("a", lost.token, force=True)
    second = held(handle)
    lock = begin(threads[1], second)
    with pytest.raises(lockkit.LockLost):
        end(threads[1], first)
    assert lock.is_valid()
    end(threads[0], second)
    assert watching.inspect("a").queue == ()


def test_an_exit_stack_is_closed_in_another_thread(connect: Connect, threads: Threads) -> None:
    handle, watching = connect().mutex("a"), connect()
    stack = contextlib.ExitStack()
    lock = threads[0].submit(lambda: stack.enter_context(handle)).result()
    assert lock.is_valid()
    threads[1].submit(stack.close).result()
    assert watching.inspect("a").queue == ()


def test_a_stack_that_nobody_closes_gives_its_lock_back(connect: Connect) -> None:
    handle, watching = connect().mutex("a"), connect()
    stack = contextlib.ExitStack()
    stack.enter_context(handle)
    del stack
    until(lambda: not watching.inspect("a").queue)


def test_what_is_entered_by_hand_is_left_by_hand_in_any_thread(
    connect: Connect, threads: Threads
) -> None:
    handle, watching = connect().mutex("a"), connect()
    lock = threads[0].submit(handle.__enter__).result()
    assert lock.is_valid()
    threads[1].submit(lambda: handle.__exit__(None, None, None)).result()
    assert watching.inspect("a").queue == ()
    with pytest.raises(RuntimeError):
        handle.__exit__(None, None, None)


def test_by_hand_what_was_lost_is_left_before_what_is_held(
    connect: Connect, threads: Threads
) -> None:
    handle, watching = connect().mutex("a"), connect()
    lost = threads[0].submit(handle.__enter__).result()
    watching.break_lock("a", lost.token, force=True)
    until(lambda: not watching.inspect("a").queue)
    with contextlib.suppress(lockkit.LockLost):
        lost.verify()
    lock = threads[1].submit(handle.__enter__).result()

    def leave() -> None:
        handle.__exit__(None, None, None)

    with pytest.raises(lockkit.LockLost):
        threads[1].submit(leave).result()
    assert lock.is_valid()
    threads[0].submit(leave).result()
    assert not lock.is_valid() and watching.inspect("a").queue == ()


def test_a_block_that_a_signal_handler_enters_in_between_has_its_own_guard(
    connect: Connect,
) -> None:
    locks = connect()
    handle = locks.mutex("a")
    order: List[str] = []

    def handler() -> None:
        with handle:
            order.append("handler")

    with handle:
        order.append("block")
        interrupting = threading.Thread(target=handler)
        interrupting.start()
        until(lambda: locks.inspect("a").waiters)
    interrupting.join()
    assert order == ["block", "handler"] and locks.inspect("a").queue == ()


def run(url: str, work: Callable[[aio.Locks, aio.Locks], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aio.connect(url) as ours, aio.connect(url) as theirs:
            await work(ours, theirs)

    asyncio.run(main())


async def free(locks: aio.Locks) -> bool:
    return not (await locks.inspect("a")).queue


def test_an_async_generator_that_is_left_early_gives_its_lock_back(server: Server) -> None:
    async def work(ours: aio.Locks, theirs: aio.Locks) -> None:
        handle = ours.mutex("a")
        problems: List[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, it: problems.append(it))

        async def numbers() -> AsyncIterator[int]:
            async with handle:
                yield 1
                yield 2

        for _ in range(3):
            async for _ in numbers():
                break
            await until_async(lambda: free(theirs))
        assert problems == []

    run(server.url, work)


def test_what_one_task_sets_up_another_one_tears_down(server: Server) -> None:
    async def work(ours: aio.Locks, theirs: aio.Locks) -> None:
        handle = ours.mutex("a")

        async def fixture() -> AsyncIterator[aio.Guard]:
            async with handle as lock:
                yield lock

        steps = fixture()
        lock = await asyncio.ensure_future(steps.__anext__())
        assert lock.is_valid()

        async def last() -> None:
            with pytest.raises(StopAsyncIteration):
                await steps.__anext__()

        await asyncio.ensure_future(last())
        assert not lock.is_valid() and await free(theirs)

        lock = await asyncio.ensure_future(handle.__aenter__())
        assert lock.is_valid()
        await asyncio.ensure_future(handle.__aexit__(None, None, None))
        assert not lock.is_valid() and await free(theirs)
        stack = contextlib.AsyncExitStack()
        await asyncio.ensure_future(stack.enter_async_context(handle))
        await asyncio.ensure_future(stack.aclose())
        assert await free(theirs)

    run(server.url, work)


def test_what_was_released_runs_nothing(server: Server) -> None:
    async def not_under_it(guard: object) -> None:
        raise AssertionError("this is not under the lock")

    async def token(guard: Any) -> int:
        token: int = guard.token
        return token

    async def main(ours: aio.Locks, theirs: aio.Locks) -> None:
        guard, slot = await ours.mutex("a").lock(), await ours.slots("gpu", 2).acquire()
        assert await guard.run(token) and await slot.run(token)
        with pytest.raises(lockkit.LockReleased):
            await guard.run(not_under_it)
        with pytest.raises(lockkit.LockReleased):
            await slot.run(not_under_it)
        with pytest.raises(lockkit.LockReleased):
            async with guard:
                await not_under_it(guard)

    run(server.url, main)


def test_a_lock_that_is_to_be_had_is_entered_by_one_task_at_a_time(server: Server) -> None:
    async def main(ours: aio.Locks, theirs: aio.Locks) -> None:
        acquiring = ours.mutex("a").lock()
        async with acquiring as lock:
            # Its block would be given the other one's guard.
            with pytest.raises(RuntimeError, match="entered"):
                await asyncio.wait_for(acquiring.__aenter__(), 5)
            assert lock.is_valid()
            first = lock.token
        async with acquiring as lock:
            assert lock.token > first
        waiting = asyncio.ensure_future(acquiring.__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="entered"):
            await asyncio.wait_for(acquiring.__aenter__(), 5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with acquiring as lock:
            assert lock.is_valid()

    run(server.url, main)
