"""The mutex, for asyncio."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, Optional, Type, TypeVar

from .._blocks import Block, Caller, EachBlock, OpenBlocks, begun, caller_of
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Acquiring, Guard, taken, waited
from ._slot import EngineSlot

T = TypeVar("T")


class Mutex:
    """A lock that one client holds at a time, in the order of coming.

    ``async with locks.mutex("invoice/42") as lock:`` waits for it, and releases it at the end of
    the block. All forms raise ``Invalid`` for a name that cannot be one.
    """

    def __init__(self, slot: EngineSlot, options: Options) -> None:
        self._slot = slot
        self._options = options
        self._blocks: OpenBlocks[Guard] = OpenBlocks(asyncio.current_task)

    def lock(self) -> Acquiring:
        """Waits for the lock. While the service is out of reach, this goes on trying. Raises
        ``LockLost`` if the waiting claim is broken."""
        return waited(self._slot, self._options.exclusive())

    async def try_lock(self) -> Optional[Guard]:
        """The lock if it is free and no other claim waits for it; otherwise ``None``, at once. Raises
        ``Unavailable`` when there is no answer."""
        return await taken(self._slot, self._options.exclusive(), 0)

    async def try_lock_for(self, timeout: Seconds) -> Optional[Guard]:
        """Waits for the lock, but not longer than this; then ``None``."""
        limit = in_seconds("timeout", timeout)
        return await taken(self._slot, self._options.exclusive(), limit)

    async def run(self, work: Callable[[Guard], Awaitable[T]]) -> T:
        """Waits for the lock, and runs ``work(guard)`` under it: the work is cancelled when the
        lock is lost, and this raises ``LockLost``."""
        return await (await self.lock()).run(work)

    # Not `async`: the caller's frame shows only before the first step of a coroutine.
    def __aenter__(self) -> Coroutine[Any, Any, Guard]:
        caller = caller_of(sys._getframe(1))
        return self._enter(begun(self, caller), caller)

    async def _enter(self, block: Optional[Block[Guard]], caller: Caller) -> Guard:
        # A handle may be used by several tasks, and more than once by one: each has its block.
        guard = await self.lock()
        if block is None:
            self._blocks.add(guard, caller)
        else:
            block.guard = guard
        return guard

    if TYPE_CHECKING:

        def __aexit__(
            self,
            kind: Optional[Type[BaseException]],
            body: Optional[BaseException],
            trace: Optional[TracebackType],
        ) -> Coroutine[Any, Any, None]: ...

    else:
        __aexit__ = EachBlock(Guard.__aexit__)
