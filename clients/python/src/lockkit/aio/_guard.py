"""A lock that is held, for asyncio, and how it is taken."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Awaitable, Callable, Coroutine, Generator, Optional, Type, TypeVar

from .._acquire import Request
from .._engine import Callback, Hold
from .._errors import Error
from .._held_lock import AsyncLost, HeldLock, swallowed
from .._record import Loss
from ._slot import EngineSlot

T = TypeVar("T")
R = TypeVar("R", bound="Releasing")


class Releasing:
    """What the end of a block, or of work under it, releases: a lock, or a slot."""

    async def release(self) -> None:
        """Gives it back, and returns once the service knows."""
        raise NotImplementedError

    async def run(self: R, work: Callable[[R], Awaitable[T]]) -> T:
        """Runs ``work(guard)`` under this, and releases it. The work is cancelled when the lock is
        lost, and this raises ``LockLost``, as it does when that shows at the release."""
        async with self:
            return await cancelled_by_loss(self, work)

    async def __aenter__(self: R) -> R:
        self._check_held()
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        body: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            await self.release()
        except Error as error:
            if not swallowed(error, body):
                raise

    def _check_held(self) -> None:
        """Raises ``LockLost`` or ``LockReleased`` where nothing may be done under it."""
        raise NotImplementedError

    def _loss(self) -> Optional[Loss]:
        raise NotImplementedError

    async def _ended(self) -> None:
        """Waits for the loss, or for the release."""
        raise NotImplementedError


class Guard(HeldLock, Releasing):
    """A lock that is held, and renewed in the background.

    As a context manager (``async with``), the end of the block releases the lock, and raises
    ``LockLost`` if it was not held until then. A guard that nothing refers to any more is released
    in the background.
    """

    def __init__(self, hold: Hold) -> None:
        super().__init__(hold)
        self.lost = AsyncLost(hold)
        """Tells of the loss: ``await lost.wait()``, ``lost.is_set()``, ``lost.call(callback)``."""

    def on_lost(self, callback: Callback) -> None:
        """Has ``callback(reason)`` called once by the event loop when the lock is lost."""
        self.lost.call(callback)

    async def release(self) -> None:
        """Gives the lock back, and returns once the service knows. Releasing again does nothing.

        Raises ``LockLost`` when the lock was not held until now: what was done under it may have
        met another client's work. After ``Unavailable``, and when this is cancelled, the background
        goes on releasing until the lease is over.
        """
        await self._hold.engine.release(self._record)

    async def verify(self) -> None:
        """Asks the backend whether the lock is held, and renews it. Raises ``LockLost`` or
        ``Unavailable``."""
        await self._hold.engine.verify(self._record)

    async def downgrade(self) -> None:
        """Of a lock held for writing: keeps it for reading, and lets other readers in. The token
        stays. Raises ``Invalid`` for other locks, ``LockLost`` when it is not held. After another
        error, and when this is cancelled, the lock is given back, unless it is certain that nothing
        was done."""
        await self._hold.engine.downgrade(self._record)

    async def _ended(self) -> None:
        await self.lost.wait()


async def cancelled_by_loss(guard: R, work: Callable[[R], Awaitable[T]]) -> T:
    """The result of ``work(guard)``, which is cancelled when the lock is lost."""
    working = asyncio.ensure_future(work(guard))
    losing = asyncio.ensure_future(guard._ended())
    try:
        await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            loss = guard._loss()
            if loss is not None:
                raise loss.error()
            await asyncio.wait({working})  # which has released it
        return working.result()
    finally:
        losing.cancel()
        # It must have ended before the lock is released, however often this is cancelled.
        again: Optional[asyncio.CancelledError] = None
        while not working.done():
            working.cancel()
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError as error:
                again = error
        if again is not None:
            raise again


class Acquiring:
    """A lock that is to be had: ``guard = await it``, or ``async with it as guard``, which also
    releases it."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Guard]]) -> None:
        self._begin = begin
        self._guard: Optional[Guard] = None
        self._entered = False

    def __await__(self) -> Generator[Any, None, Guard]:
        return self._begin().__await__()

    async def __aenter__(self) -> Guard:
        if self._entered:
            raise RuntimeError("this was entered and not left yet: each block asks for its own lock")
        self._entered = True
        try:
            self._guard = await self._begin()
        except BaseException:
            self._entered = False
            raise
        return self._guard

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        body: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard, self._guard, self._entered = self._guard, None, False
        if guard is not None:
            await guard.__aexit__(kind, body, trace)


async def taken(slot: EngineSlot, request: Request, limit: Optional[float]) -> Optional[Guard]:
    """The lock, within so many seconds: 0 does not wait, ``None`` waits for good."""
    hold = await slot.engine().acquire(request, limit)
    return None if hold is None else Guard(hold)


def waited(slot: EngineSlot, request: Request) -> Acquiring:
    """The lock, however long it takes."""

    async def begin() -> Guard:
        guard = await taken(slot, request, None)
        if guard is None:
            raise AssertionError("a lock without a limit is waited for")
        return guard

    return Acquiring(begin)
