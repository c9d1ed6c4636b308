"""What nobody can release any more is not renewed: guards that were dropped, with callbacks that lead
back to them, and what an exception of a signal handler left behind, at every line of the package."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Coroutine, Dict, List, Optional

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from server import PATIENCE, Server
from test_aio import until as until_async
from waiting import begin, until

PACKAGE = str(Path(lockkit.__file__).parent)


class Worker:
    """An object that has a guard, and is told of its loss."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        lock.on_lost(self.stop)

    def stop(self, reason: lockkit.LossReason) -> None:
        pass


def with_a_closure(lock: Any) -> None:
    lock.on_lost(lambda reason: print(lock, reason))


@pytest.mark.parametrize("listen", [with_a_closure, Worker, lambda lock: lock.on_lost(print)])
def test_a_dropped_guard_is_released_whatever_is_called_on_its_loss(
    connect: Connect, server: Server, listen: Callable[[Any], object]
) -> None:
    locks, watching = connect(), connect()
    lock = locks.mutex("a").lock()
    listen(lock)
    del lock

    def collected() -> bool:
        # More than once: the thread that brought the guard may still be about to forget it.
        gc.collect()
        return not watching.inspect("a").queue

    until(collected)

    async def main() -> None:
        async with aio.connect(server.url) as locks:
            lock = await locks.mutex("a").lock()
            listen(lock)
            del lock
            gc.collect()

            async def free() -> bool:
                return not (await locks.inspect("a")).queue

            await until_async(free)

    asyncio.run(main())


def test_what_tells_of_a_loss_does_not_keep_the_lock(connect: Connect, server: Server) -> None:
    locks, watching = connect(), connect()
    lock = locks.mutex("a").lock()
    lost = lock.lost
    lost.call(lambda reason: print(lock, reason))
    waiting = begin(lost.wait)
    del lock

    def collected() -> bool:
        gc.collect()
        return not watching.inspect("a").queue

    until(collected)
    assert waiting.result(PATIENCE) is False and not lost.is_set()

    async def main() -> None:
        async with aio.connect(server.url) as locks:
            guard = await locks.mutex("a").lock()
            lost = guard.lost
            waiting = asyncio.ensure_future(lost.wait())
            del guard
            gc.collect()
            assert await asyncio.wait_for(waiting, PATIENCE) is None
            # While the guard is there, it is told of a loss.
            guard = await locks.mutex("a").lock()
            lost = guard.lost
            waiting = asyncio.ensure_future(lost.wait())
            await locks.break_lock("a", guard.token, force=True)
            with contextlib.suppress(lockkit.LockLost):
                await guard.verify()
            assert await asyncio.wait_for(waiting, PATIENCE) is not None

    asyncio.run(main())


def ignore_finalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a finalizer raises is ignored. The hook of pytest keeps it, and so the guard."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


class Interrupt(BaseException):
    """What a handler of a signal raises."""


def traced(work: Callable[[], None], moment: Optional[int] = None) -> int:
    """Does this; at the given moment, an exception comes. How many moments there were: calls and
    lines of the package in this thread."""
    passed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event in ("call", "line"):
            passed += 1
            if passed == moment:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return passed


Form = Callable[[lockkit.Locks, Dict[str, lockkit.Mutex], str], None]


def block(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    with handles.setdefault(name, locks.mutex(name)):
        pass


def block_of_lock(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    with locks.mutex(name).lock() as lock:
        lock.on_lost(lambda reason: print(lock))


def generator(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    handle = handles.setdefault(name, locks.mutex(name))

    def dependency() -> Any:
        with handle as lock:
            yield lock

    for lock in dependency():
        assert lock.token


def stack(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(handles.setdefault(name, locks.mutex(name)))


def tried(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    lock = locks.mutex(name).try_lock()
    assert lock is not None
    lock.release()


def dropped(locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str) -> None:
    lock = locks.mutex(name).lock()
    lock.on_lost(lambda reason: print(lock))
    del lock


def dropped_at_once(
    locks: lockkit.Locks, handles: Dict[str, lockkit.Mutex], name: str
) -> None:
    locks.mutex(name).lock()


@pytest.mark.parametrize(
    "form", [block, block_of_lock, generator, stack, tried, dropped, dropped_at_once]
)
def test_an_exception_at_any_line_leaves_no_lock(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    ignore_finalizers(monkeypatch)
    locks, watching = connect(ttl=3), connect()
    handles: Dict[str, lockkit.Mutex] = {}
    form(locks, handles, "warm")
    moments = traced(lambda: form(locks, handles, "counted"))
    assert moments > 20
    for moment in range(1, moments + 1):
        with contextlib.suppress(Interrupt):
            traced(lambda: form(locks, handles, f"lock/{moment}"), moment)
    gc.collect()
    until(lambda: not watching.list())


AsyncForm = Callable[[aio.Locks, aio.Mutex], Coroutine[Any, Any, None]]


async def async_block(locks: aio.Locks, handle: aio.Mutex) -> None:
    async with handle:
        pass


async def async_block_of_lock(locks: aio.Locks, handle: aio.Mutex) -> None:
    async with handle.lock() as lock:
        lock.on_lost(lambda reason: print(lock))


async def async_tried(locks: aio.Locks, handle: aio.Mutex) -> None:
    lock = await handle.try_lock()
    assert lock is not None
    await lock.release()


async def async_dropped(locks: aio.Locks, handle: aio.Mutex) -> None:
    await handle.lock()


async def async_run(locks: aio.Locks, handle: aio.Mutex) -> None:
    async def work(lock: aio.Guard) -> None:
        assert lock.token

    await handle.run(work)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    "form", [async_block, async_block_of_lock, async_tried, async_dropped, async_run]
)
def test_an_exception_at_any_line_leaves_no_lock_in_an_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, form: AsyncForm
) -> None:
    ignore_finalizers(monkeypatch)

    async def once(locks: aio.Locks, handle: aio.Mutex) -> None:
        # What has met an exception may wait for good: this is not the matter here.
        task = asyncio.ensure_future(form(locks, handle))
        await asyncio.wait({task}, timeout=2)
        task.cancel()
        with contextlib.suppress(Interrupt, asyncio.CancelledError, lockkit.Error):
            await task

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        watching = aio.connect(server.url)
        ours = aio.connect(server.url, ttl=3)
        await form(ours, ours.mutex("warm"))
        # Tracing an event loop is global: begun and ended around the steps of one form.
        passed, stop = 0, 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal passed
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event in ("call", "line"):
                passed += 1
                if passed == stop:
                    raise Interrupt
            return trace

        sys.settrace(trace)
        await once(ours, ours.mutex("counted"))
        sys.settrace(None)
        moments = passed
        assert moments > 50
        handles: List[aio.Mutex] = []
        for moment in range(1, moments + 1):
            handles.append(ours.mutex(f"lock/{moment}"))
            passed, stop = 0, moment
            sys.settrace(trace)
            try:
                await once(ours, handles[-1])
            finally:
                sys.settrace(None)
        gc.collect()

        async def free() -> bool:
            return not await watching.list()

        await until_async(free)
        await ours.close(0.2)
        await watching.close(0.2)

    asyncio.run(main())
